//! Who sends a request: the address, and the person by the session, a cookie with a random secret.
//!
//! Each sign-in makes a new secret, so nobody can fix a session in advance. The cookie is not readable
//! by scripts, is not sent along with other sites' forms, and over HTTPS has the prefix `__Host-`, which
//! no other host can set.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method,
        header::{self, SET_COOKIE},
        request::Parts,
    },
    response::AppendHeaders,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use svc_store::{By, LoginRecord, Role, UserId};
use tokio::sync::OwnedSemaphorePermit;

use crate::{address, browser, config::Web, cookie, error::AppError, secret::Secret, state::App};

const NAME: &str = "console";
/// A session without requests ends after this time.
pub const IDLE: Duration = Duration::from_hours(2);

/// The address that a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub IpAddr);

/// The signed-in person of a request.
#[derive(Clone, Debug)]
pub struct User {
    pub id: UserId,
    pub name: String,
    pub role: Role,
    /// Where the request comes from.
    pub address: IpAddr,
    /// The session's secret, hashed.
    pub session: [u8; 32],
    /// The person's turn at a page ends with the request's handler.
    _turn: Arc<OwnedSemaphorePermit>,
}

/// A person who may decide about agents and hosts.
#[derive(Clone, Debug)]
pub struct Operator(pub User);

/// A person who may manage tokens and people.
#[derive(Clone, Debug)]
pub struct Admin(pub User);

impl User {
    /// For the record of what happens to people.
    pub fn by(&self) -> By<'_> {
        By {
            actor: &self.name,
            address: Some(self.address),
        }
    }

    pub fn may_operate(&self) -> bool {
        self.role >= Role::Operator
    }

    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    fn require(self, role: Role) -> Result<Self, AppError> {
        match self.role >= role {
            true => Ok(self),
            false => Err(AppError::Forbidden(role.as_str())),
        }
    }
}

impl FromRequestParts<App> for Client {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        address::client(&parts.extensions, &parts.headers, &app.web.trusted_proxies)
            .map(Self)
            .ok_or(AppError::Internal("a request without an address"))
    }
}

impl FromRequestParts<App> for User {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        let away = || match parts.uri.path() {
            "/live" => AppError::SignedOut,
            _ => AppError::SignIn(sign_in_path(parts, &app.web)),
        };
        let secret = secret(&parts.headers, &app.web).ok_or_else(away)?;
        let session = secret.hash();
        let found = app.store.console_session(&session, IDLE).await?;
        let found = found.ok_or_else(away)?;
        if found.stale {
            app.store.console_session_touch(&session).await?;
        }
        let Client(address) = Client::from_request_parts(parts, app).await?;
        Ok(Self {
            _turn: Arc::new(app.clients.turn(&found.name).await?),
            id: found.user_id,
            name: found.name,
            role: found.role,
            address,
            session,
        })
    }
}

impl FromRequestParts<App> for Operator {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        let user = User::from_request_parts(parts, app).await?;
        user.require(Role::Operator).map(Self)
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        let user = User::from_request_parts(parts, app).await?;
        user.require(Role::Admin).map(Self)
    }
}

/// Only pages are returned to: repeating a change unasked would be wrong. A form that was sent leads back to its page, which
/// the browser names in `Referer`.
fn sign_in_path(parts: &Parts, web: &Web) -> String {
    let form = parts.method != Method::GET && parts.uri.path() != "/sign-out";
    let target = match form {
        true => parts
            .headers
            .get(header::REFERER)
            .and_then(|page| page.to_str().ok()?.strip_prefix(web.origin().as_str()))
            .unwrap_or("/"),
        false if parts.method == Method::GET => {
            parts.uri.path_and_query().map_or("/", |path| path.as_str())
        }
        false => "/",
    };
    let next = utf8_percent_encode(target, NON_ALPHANUMERIC);
    match (form, target) {
        (true, _) => format!("/sign-in?unsent=yes&next={next}"),
        (false, "/") => "/sign-in".into(),
        (false, _) => format!("/sign-in?next={next}"),
    }
}

/// Cookies of an answer.
pub type Cookies = AppendHeaders<[(HeaderName, HeaderValue); 2]>;

/// Opens a session for a person, and returns its cookie and that of the browser. A session that the browser had before ends.
pub async fn open(
    app: &App,
    user: &LoginRecord,
    address: IpAddr,
    headers: &HeaderMap,
) -> Result<Cookies, AppError> {
    let by = By {
        actor: &user.name,
        address: Some(address),
    };
    if let Some(before) = secret(headers, &app.web) {
        app.store.console_session_close(&before.hash(), by).await?;
    }
    let secret = Secret::generate()?;
    let life = app.web.session_lifetime;
    app.store
        .console_session_open(&secret.hash(), user.id, life, by)
        .await?;
    let session = cookie::set(&app.web, NAME, secret.expose(), life)?;
    let browser = browser::remember(app, user, headers).await?;
    Ok(AppendHeaders([
        (SET_COOKIE, session),
        (SET_COOKIE, browser),
    ]))
}

/// The cookie that removes the session from the browser.
pub fn forget(web: &Web) -> Result<HeaderValue, AppError> {
    cookie::set(web, NAME, "", Duration::ZERO)
}

fn secret(headers: &HeaderMap, web: &Web) -> Option<Secret> {
    cookie::secret(headers, web, NAME)
}
