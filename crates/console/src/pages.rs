//! The pages: one file each. A page is read, rendered, and works without scripts; the same functions
//! render the parts of it that are live.

mod activity;
mod agent;
pub mod approvals;
mod bulk;
pub mod fleet;
mod form;
pub mod host;
pub mod hosts;
mod people;
mod plots;
pub mod service;
mod tokens;

use askama::Template;
use axum::{
    Router,
    response::Html,
    routing::{get, post},
};

use crate::{app::App, error::AppError, live};

pub fn routes() -> Router<App> {
    Router::new()
        .route("/", get(fleet::page))
        .route("/hosts", get(hosts::page))
        .route("/hosts/bulk", post(bulk::preview))
        .route("/hosts/bulk/apply", post(bulk::apply))
        .route("/hosts/{id}", get(host::page))
        .route("/hosts/{id}/series", get(plots::series))
        .route("/hosts/{id}/note", post(host::note))
        .route("/hosts/{id}/labels", post(host::labels))
        .route("/hosts/{id}/retire", post(host::retire))
        .route("/agents/{id}", get(agent::page))
        .route("/agents/{id}/decide", post(agent::decide))
        .route("/approvals", get(approvals::page))
        .route("/approvals/approve", post(approvals::approve))
        .route("/tokens", get(tokens::page).post(tokens::create))
        .route("/tokens/{id}", get(tokens::show))
        .route("/tokens/{id}/revoke", post(tokens::revoke))
        .route("/activity", get(activity::page))
        .route("/activity/export", get(activity::export))
        .route("/service", get(service::page))
        .route("/people", get(people::page).post(people::add))
        .route("/people/{name}", post(people::change))
        .route("/live", get(live::live))
}

type Page = Result<Html<String>, AppError>;

fn html(template: &impl Template) -> Page {
    Ok(Html(template.render()?))
}
