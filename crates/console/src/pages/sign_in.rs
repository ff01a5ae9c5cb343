//! Signing in with name and password, and signing out.

use askama::Template;
use axum::{
    Form,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use svc_store::EventKind;

use crate::{
    browser,
    error::AppError,
    failures, password,
    session::{self, Client, User},
    shell::{Page, html},
    state::App,
};

const UNSENT: &str = "The session had ended, so the form was not sent and nothing was changed. \
    Sign in to come back to its page, and send it again.";

#[derive(Deserialize)]
pub struct Return {
    #[serde(default)]
    next: String,
    /// Whether a form was refused because the session had ended.
    #[serde(default)]
    unsent: String,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    next: &'a str,
    name: &'a str,
    problem: &'a str,
    /// Nobody can sign in yet: the page says how to add the first person.
    first: bool,
}

#[derive(Deserialize)]
pub struct SignIn {
    name: String,
    password: String,
    #[serde(default)]
    next: String,
}

pub async fn page(State(app): State<App>, Query(target): Query<Return>) -> Page {
    html(&SignInPage {
        next: local(&target.next),
        name: "",
        problem: match target.unsent.as_str() {
            "yes" => UNSENT,
            _ => "",
        },
        first: !app.has_people().await?,
    })
}

/// A wrong name and a wrong password get the same answer after the same work.
pub async fn submit(
    State(app): State<App>,
    Client(address): Client,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Result<Response, AppError> {
    let name = form.name.trim();
    if name.len() > 64 || form.password.len() > password::MOST {
        return refused(&app, &form);
    }
    let browser = browser::known(&app, &headers, name).await?;
    if let Err(limited) = app.doors.attempt(address, name, browser) {
        app.metrics.sign_in("limited");
        failures::limited(&app, EventKind::SignIn, name, address).await?;
        return Err(limited);
    }
    let known = app.store.console_user_login(name).await?;
    let hash = known.as_ref().and_then(|user| user.password_hash.clone());
    let right = app.doors.passwords.verify(form.password.clone(), hash);
    let (true, Some(user)) = (right.await?, &known) else {
        failures::refused(&app, EventKind::SignIn, known.as_ref(), address).await?;
        return refused(&app, &form);
    };
    let cookies = session::open(&app, user, address, &headers).await?;
    app.metrics.sign_in("accepted");
    tracing::info!(user = user.name, %address, "signed in");
    let to = Redirect::to(local(&form.next));
    Ok((cookies, to).into_response())
}

pub async fn sign_out(State(app): State<App>, user: User) -> Result<Response, AppError> {
    let closed = app.store.console_session_close(&user.session, user.by());
    closed.await?;
    let cookie = [(header::SET_COOKIE, session::forget(&app.web)?)];
    let clear = [("clear-site-data", "\"cache\"")];
    Ok((cookie, clear, Redirect::to("/sign-in")).into_response())
}

fn refused(app: &App, form: &SignIn) -> Result<Response, AppError> {
    app.metrics.sign_in("refused");
    let name: String = form.name.chars().take(64).collect();
    let page = html(&SignInPage {
        next: local(&form.next),
        name: &name,
        problem: "The name or the password is wrong.",
        first: false,
    });
    Ok((StatusCode::UNAUTHORIZED, page?).into_response())
}

/// A path of this site, whatever the client asked for. `//host` and `/\host` name other hosts.
fn local(next: &str) -> &str {
    let mut letters = next.chars();
    let inside = letters.next() == Some('/')
        && !matches!(letters.next(), Some('/' | '\\'))
        && next
            .chars()
            .all(|letter| letter.is_ascii_graphic() && letter != '\\');
    match inside {
        true => next,
        false => "/",
    }
}
