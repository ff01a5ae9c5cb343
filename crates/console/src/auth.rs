//! People: passwords, sessions, roles, one-time links, and the limits of trying.

mod doors;
mod password;
mod session;
mod sign_in;
mod welcome;

use axum::{
    Router,
    routing::{get, post},
};

pub use doors::Doors;
pub use session::{Admin, IDLE, Operator, User};
pub use welcome::link;

use crate::app::App;

pub fn routes() -> Router<App> {
    Router::new()
        .route("/sign-in", get(sign_in::page).post(sign_in::submit))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/welcome", get(welcome::page).post(welcome::open))
        .route("/welcome/password", post(welcome::set_password))
}
