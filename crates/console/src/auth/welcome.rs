//! One-time links: the way in for a new person, for a forgotten password, and for `make dev`.
//!
//! The code stands in the link's fragment, which browsers do not send: it reaches no server log and no
//! Referer. A script puts it into a form; without scripts the person pastes it.

use askama::Template;
use axum::{
    Form,
    extract::State,
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use svc_store::{LinkKind, LoginRecord};
use url::Url;

use super::{password, session, sign_in::client};
use crate::{app::App, error::AppError, secret::Secret};

/// The link with this code.
pub fn link(base_url: &Url, code: &Secret) -> String {
    let origin = base_url.origin().ascii_serialization();
    format!("{origin}/welcome#{}", code.expose())
}

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

pub async fn page() -> Result<Html<String>, AppError> {
    Ok(Html(WelcomePage { problem: "" }.render()?))
}

/// Signs in at once, or asks for a password, by the kind of the link.
pub async fn open(
    State(app): State<App>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(form): Form<Code>,
) -> Result<Response, AppError> {
    app.doors
        .attempt_code(client(&app, &extensions, &headers)?)?;
    let Some((code, user, kind)) = find(&app, &form.code).await? else {
        return used_up();
    };
    match kind {
        LinkKind::SetPassword => {
            let page = PasswordPage {
                name: &user.name,
                code: code.expose(),
                problem: "",
            };
            Ok(Html(page.render()?).into_response())
        }
        LinkKind::SignIn => match app.store.console_link_redeem(&code.hash(), None).await? {
            true => enter(session::open(&app, &user, &headers).await?),
            false => used_up(),
        },
    }
}

/// The link is used up only when the password is good, and then by one request only.
pub async fn set_password(
    State(app): State<App>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(form): Form<NewPassword>,
) -> Result<Response, AppError> {
    app.doors
        .attempt_code(client(&app, &extensions, &headers)?)?;
    let Some((code, user, LinkKind::SetPassword)) = find(&app, &form.code).await? else {
        return used_up();
    };
    let problem = match form.password == form.again {
        true => password::weakness(&form.password, &user.name),
        false => Some("The two passwords differ.".into()),
    };
    if let Some(problem) = problem {
        let page = PasswordPage {
            name: &user.name,
            code: code.expose(),
            problem: &problem,
        };
        let page = Html(page.render()?);
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    let hash = app.doors.passwords.hash(form.password).await?;
    let code = code.hash();
    let redeemed = app.store.console_link_redeem(&code, Some(&hash));
    match redeemed.await? {
        true => enter(session::open(&app, &user, &headers).await?),
        false => used_up(),
    }
}

async fn find(app: &App, code: &str) -> Result<Option<(Secret, LoginRecord, LinkKind)>, AppError> {
    let Some(code) = Secret::parse(code.trim()) else {
        return Ok(None);
    };
    let found = app.store.console_link(&code.hash()).await?;
    Ok(found.map(|(user, kind)| (code, user, kind)))
}

fn enter(cookie: HeaderValue) -> Result<Response, AppError> {
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response())
}

fn used_up() -> Result<Response, AppError> {
    let problem = "This link was used or has expired. An admin can create another one.";
    let page = Html(WelcomePage { problem }.render()?);
    Ok((StatusCode::UNAUTHORIZED, page).into_response())
}
