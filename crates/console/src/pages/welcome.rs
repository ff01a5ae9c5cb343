//! One-time links: the way in for a new person, for a forgotten password, and for `make dev`.
//!
//! The code stands in the link's fragment. A script puts it into a form; without scripts the person
//! pastes it.

use std::net::IpAddr;

use askama::Template;
use axum::{
    Form,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use svc_store::{By, EventKind, LinkKind, LoginRecord};

use crate::{
    error::AppError,
    failures, password,
    secret::Secret,
    session::{self, Client},
    shell::{Page, html},
    state::App,
};

#[derive(Template)]
#[template(path = "welcome.html")]
struct WelcomePage<'a> {
    problem: &'a str,
}

#[derive(Template)]
#[template(path = "password.html")]
struct PasswordPage<'a> {
    name: &'a str,
    code: &'a str,
    problem: &'a str,
}

#[derive(Deserialize)]
pub struct Code {
    code: String,
}

#[derive(Deserialize)]
pub struct NewPassword {
    code: String,
    password: String,
    again: String,
}

pub async fn page() -> Page {
    html(&WelcomePage { problem: "" })
}

/// Signs in at once, or asks for a password, by the kind of the link.
pub async fn open(
    State(app): State<App>,
    Client(address): Client,
    headers: HeaderMap,
    Form(form): Form<Code>,
) -> Result<Response, AppError> {
    attempt(&app, address).await?;
    match find(&app, &form.code).await? {
        Some((code, user, LinkKind::SetPassword)) => Ok(ask(&user, &code, "")?.into_response()),
        Some((code, user, LinkKind::SignIn)) => {
            enter(&app, address, &headers, &user, &code, None).await
        }
        None => used_up(&app, address).await,
    }
}

/// The link is used up only when the password is good, and then by one request only.
pub async fn set_password(
    State(app): State<App>,
    Client(address): Client,
    headers: HeaderMap,
    Form(form): Form<NewPassword>,
) -> Result<Response, AppError> {
    attempt(&app, address).await?;
    let Some((code, user, LinkKind::SetPassword)) = find(&app, &form.code).await? else {
        return used_up(&app, address).await;
    };
    if let Some(problem) = password::problem(&form.password, &form.again, &user.name) {
        let page = ask(&user, &code, &problem)?;
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    let hash = app.doors.passwords.hash(form.password).await?;
    enter(&app, address, &headers, &user, &code, Some(&hash)).await
}

async fn attempt(app: &App, address: IpAddr) -> Result<(), AppError> {
    let Err(limited) = app.doors.attempt_code(address) else {
        return Ok(());
    };
    failures::limited(app, EventKind::LinkUsed, "", address).await?;
    Err(limited)
}

async fn find(app: &App, code: &str) -> Result<Option<(Secret, LoginRecord, LinkKind)>, AppError> {
    let Some(code) = Secret::parse(code.trim()) else {
        return Ok(None);
    };
    let found = app.store.console_link(&code.hash()).await?;
    Ok(found.map(|(user, kind)| (code, user, kind)))
}

/// The form for a new password.
fn ask(user: &LoginRecord, code: &Secret, problem: &str) -> Page {
    html(&PasswordPage {
        name: &user.name,
        code: code.expose(),
        problem,
    })
}

/// Uses the link up, sets the password if there is one, and signs the person in.
async fn enter(
    app: &App,
    address: IpAddr,
    headers: &HeaderMap,
    user: &LoginRecord,
    code: &Secret,
    password_hash: Option<&str>,
) -> Result<Response, AppError> {
    let hash = code.hash();
    let by = By {
        actor: &user.name,
        address: Some(address),
    };
    let redeemed = app.store.console_link_redeem(&hash, password_hash, by);
    if !redeemed.await? {
        return used_up(app, address).await;
    }
    let cookies = session::open(app, user, address, headers).await?;
    Ok((cookies, Redirect::to("/")).into_response())
}

async fn used_up(app: &App, address: IpAddr) -> Result<Response, AppError> {
    failures::refused(app, EventKind::LinkUsed, None, address).await?;
    let problem = "This link was used, replaced by a newer one, or has expired. An admin can create another one.";
    Ok((StatusCode::UNAUTHORIZED, html(&WelcomePage { problem })?).into_response())
}
