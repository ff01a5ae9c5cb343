//! What a request can fail with, and the one place that shows it: a page, or for htmx a part of one.
//! The person reads what happened; the cause goes to the log.

use std::{fmt::Write, time::Duration};

use askama::Template;
use aws_lc_rs::error::Unspecified;
use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{AppendHeaders, Html, IntoResponse, Redirect, Response},
};
use svc_store::{RejectionKind, StoreError};

use crate::render;

pub const SCHEMA_BEHIND: &str =
    "the database's schema is older than this console: run svc-ingest migrate";

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("{0}")]
    NotFound(&'static str),
    #[error("{0}")]
    BadRequest(String),
    /// The current state does not allow the change.
    #[error("{0}")]
    Conflict(String),
    #[error("this needs the role {0}")]
    Forbidden(&'static str),
    #[error("too many attempts")]
    Limited(Duration),
    /// One client, or one person, has as much under way as it may have.
    #[error("{0}")]
    Crowded(&'static str),
    /// A program without a valid JWT.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// The path of the page to sign in on, which leads back.
    #[error("not signed in")]
    SignIn(String),
    /// The session of a live stream has ended. A stream shows no page: its page reloads itself.
    #[error("not signed in any more")]
    SignedOut,
    #[error("{0}")]
    Internal(&'static str),
    #[error("the database failed")]
    Store(#[source] StoreError),
    /// The pages need tables and functions that are not there yet.
    #[error("the schema is older than this console")]
    SchemaBehind,
    #[error("the page cannot be rendered")]
    Template(#[from] askama::Error),
}

impl AppError {
    pub fn bad_request(message: &str) -> Self {
        Self::BadRequest(message.into())
    }

    /// Whether the current state or the values do not allow the change: to repeat it leads nowhere.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NotFound(_) | Self::BadRequest(_) | Self::Conflict(_)
        )
    }

    /// What the person reads.
    pub fn message(&self) -> String {
        self.shown().2
    }
}

impl From<Unspecified> for AppError {
    fn from(_: Unspecified) -> Self {
        Self::Internal("no random numbers")
    }
}

impl From<StoreError> for AppError {
    /// A rejected decision is an answer for the person, not a failure.
    fn from(error: StoreError) -> Self {
        let rejection = error.rejection().map(|rejection| {
            let mut text = sentence(rejection.message);
            if let Some(hint) = rejection.hint {
                let _ = write!(text, " {}", sentence(hint));
            }
            (rejection.kind, text)
        });
        match rejection {
            Some((RejectionKind::NotFound, _)) => Self::NotFound("It does not exist any more."),
            Some((RejectionKind::Malformed, text)) => Self::BadRequest(text),
            Some((RejectionKind::Conflict | RejectionKind::ModeMissing, text)) => {
                Self::Conflict(text)
            }
            // A NUL in a text, a number out of range: what a person or a forged form sent.
            None if error.is_data_error() => {
                Self::bad_request("The database does not accept these values.")
            }
            None => Self::Store(error),
        }
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let mut text: String = first.into_iter().chain(letters).collect();
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

/// What the middleware renders, once it knows how the client asked.
#[derive(Clone, Debug)]
struct Shown {
    title: &'static str,
    message: String,
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    title: &'a str,
    message: &'a str,
}

#[derive(Template)]
#[template(path = "error_part.html")]
struct ErrorPart<'a> {
    title: &'a str,
    message: &'a str,
}

impl AppError {
    fn shown(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::NotFound(text) => (StatusCode::NOT_FOUND, "Not found", (*text).into()),
            Self::BadRequest(text) => (StatusCode::BAD_REQUEST, "That does not work", text.clone()),
            Self::Conflict(text) => (StatusCode::CONFLICT, "That is not possible now", text.clone()),
            Self::Forbidden(role) => (
                StatusCode::FORBIDDEN,
                "Not allowed",
                format!("This needs the role {role}. An admin can give it to you."),
            ),
            Self::Limited(wait) => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many attempts",
                format!("Try again in {} seconds.", wait.as_secs() + 1),
            ),
            Self::Crowded(text) => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too much at once",
                format!("{text} Try again in a moment."),
            ),
            Self::Unauthorized(text) => (StatusCode::UNAUTHORIZED, "Not allowed", (*text).into()),
            Self::Store(error) if error.is_pool_busy() => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The console is busy",
                "All its connections to the database are in use. Try again in a moment.".into(),
            ),
            Self::Store(error) if error.is_unavailable() => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The database is away",
                "The console cannot read or change anything now. Agents keep their samples meanwhile. Try again in a moment."
                    .into(),
            ),
            Self::SchemaBehind => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Not yet",
                sentence(SCHEMA_BEHIND),
            ),
            Self::SignedOut => (
                StatusCode::UNAUTHORIZED,
                "Signed out",
                "The session has ended.".into(),
            ),
            Self::SignIn(_) | Self::Internal(_) | Self::Store(_) | Self::Template(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Something is broken",
                "This is a fault of the console. Its log has the cause.".into(),
            ),
        }
    }
}

impl AppError {
    /// When a client may try again, in seconds, rounded up.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Limited(wait) => Some(wait.as_secs() + 1),
            Self::Crowded(_) => Some(5),
            Self::Store(error) if error.is_unavailable() => Some(2),
            _ => None,
        }
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        if let Self::SignIn(next) = &self {
            return Redirect::to(next).into_response();
        }
        let (status, title, message) = self.shown();
        let retry_after = self.retry_after();
        let challenge = matches!(self, Self::Unauthorized(_));
        if status.is_server_error() {
            let cause = format!("{:#}", anyhow::Error::from(self));
            tracing::warn!(cause, "a request failed");
        }
        let mut response = status.into_response();
        response.extensions_mut().insert(Shown { title, message });
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if challenge {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

/// What programs read of an error.
const KEPT: [HeaderName; 3] = [header::RETRY_AFTER, header::WWW_AUTHENTICATE, header::ALLOW];

/// Renders errors, ours and those of the layers below, as the client asked for them.
pub async fn render(request: Request, next: Next) -> Response {
    if request.uri().path() == "/healthz" {
        return next.run(request).await; // Its reason is for whoever watches the console.
    }
    let part = request.headers().contains_key("hx-request");
    let api = request.uri().path().starts_with("/api/");
    let response = next.run(request).await;
    let status = response.status();
    let shown = match response.extensions().get::<Shown>() {
        Some(shown) => shown.clone(),
        None if status.is_redirection() && part => return redirect_htmx(response),
        None if !(status.is_client_error() || status.is_server_error()) => return response,
        None if response.headers().contains_key(header::CONTENT_TYPE) && !is_plain(&response) => {
            return response;
        }
        None => refusal(status),
    };
    let (title, message) = (shown.title, shown.message.as_str());
    let body = match (api, part) {
        (true, _) => Ok(format!("{message}\n").into_response()),
        (_, true) => render::render(&ErrorPart { title, message }).map(html),
        (_, false) => render::render(&ErrorPage { title, message }).map(html),
    };
    let kept = KEPT.map(|name| Some((name.clone(), response.headers().get(name)?.clone())));
    let kept = AppendHeaders(kept.into_iter().flatten());
    (status, kept, body.unwrap_or_else(|_| title.into_response())).into_response()
}

fn html(body: String) -> Response {
    Html(body).into_response()
}

/// What the layers below refuse: their own texts are for programs.
fn refusal(status: StatusCode) -> Shown {
    let (title, message) = match status {
        StatusCode::BAD_REQUEST => ("Not found", "This address leads nowhere."),
        StatusCode::FORBIDDEN => (
            "Not allowed",
            "The form was not sent by a page of this console. Open the page again, and repeat it there.",
        ),
        StatusCode::REQUEST_TIMEOUT => {
            ("Too slow", "The request did not arrive in time. Try again.")
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            ("Not found", "Changes are made by the forms of the pages.")
        }
        StatusCode::PAYLOAD_TOO_LARGE => ("Too large", "The form is too large."),
        _ => (
            status.canonical_reason().unwrap_or("Error"),
            "The request was refused.",
        ),
    };
    Shown {
        title,
        message: message.into(),
    }
}

/// Plain texts are the short refusals of layers and extractors.
fn is_plain(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"))
}

/// htmx follows redirects inside its request, which would put a whole page into a part.
fn redirect_htmx(response: Response) -> Response {
    let location = response.headers().get(header::LOCATION).cloned();
    let to = location.unwrap_or(HeaderValue::from_static("/"));
    let cookies = response.headers().get_all(header::SET_COOKIE).iter();
    let cookies: Vec<HeaderValue> = cookies.cloned().collect();
    let mut answer = ([("hx-redirect", to)], "").into_response();
    for cookie in cookies {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}
