//! A person's own account: the password, and the sessions.

use askama::Template;
use axum::{
    Form,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use svc_store::{EventKind, OpenSession};

use crate::{
    browser,
    error::AppError,
    failures,
    form::Fields,
    password,
    session::{IDLE, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    changed: String,
}

#[derive(Deserialize)]
pub struct NewPassword {
    current: String,
    password: String,
    again: String,
}

#[derive(Template)]
#[template(path = "me.html")]
struct MePage<'a> {
    shell: Shell,
    /// Without one, only a link sets a password: whoever found an open browser must not take the account over.
    has_password: bool,
    sessions: Vec<OpenSession>,
    problem: &'a str,
    changed: bool,
}

pub async fn page(State(app): State<App>, user: User, Query(asked): Query<Asked>) -> Page {
    show(&app, user, "", asked.changed == "yes").await
}

/// Guesses of the current password are limited as those at the door are.
pub async fn set_password(
    State(app): State<App>,
    user: User,
    headers: HeaderMap,
    Form(form): Form<NewPassword>,
) -> Result<Response, AppError> {
    if let Some(problem) = password::problem(&form.password, &form.again, &user.name) {
        return again(&app, user, &problem).await;
    }
    let (kind, from) = (EventKind::PasswordSet, user.address);
    let browser = browser::known(&app, &headers, &user.name).await?;
    if let Err(limited) = app.doors.attempt(from, &user.name, browser) {
        failures::limited(&app, kind, &user.name, from).await?;
        return Err(limited);
    }
    let known = app.store.console_user_login(&user.name).await?;
    let hash = known.as_ref().and_then(|user| user.password_hash.clone());
    let hash = hash.filter(|_| form.current.len() <= password::MOST);
    if !app.doors.passwords.verify(form.current, hash).await? {
        failures::refused(&app, kind, known.as_ref(), from).await?;
        return again(&app, user, "The current password is wrong.").await;
    }
    let hash = app.doors.passwords.hash(form.password).await?;
    let set = app
        .store
        .console_password_set(user.id, &hash, &user.session, user.by());
    set.await?;
    Ok(go_to("/me?changed=yes")?.into_response())
}

/// Ends one session, or all but this one.
pub async fn end_sessions(State(app): State<App>, user: User, fields: Fields) -> Changed {
    let id = fields.ids("session").first().copied();
    if id.is_none() && fields.get("session") != "others" {
        return Err(AppError::bad_request("Choose a session."));
    }
    let ended = app
        .store
        .console_sessions_end(user.id, id, &user.session, user.by());
    ended.await?;
    go_to("/me")
}

async fn again(app: &App, user: User, problem: &str) -> Result<Response, AppError> {
    let page = show(app, user, problem, false).await?;
    Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response())
}

async fn show(app: &App, user: User, problem: &str, changed: bool) -> Page {
    let store = &app.store;
    let known = store.console_user_login(&user.name).await?;
    html(&MePage {
        has_password: known.is_some_and(|user| user.password_hash.is_some()),
        sessions: store.console_sessions(user.id, &user.session, IDLE).await?,
        shell: Shell::new(app, user, "me"),
        problem,
        changed,
    })
}
