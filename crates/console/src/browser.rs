//! Browsers in which a person has signed in before.
//!
//! Attempts to sign in are limited by name, so anyone could use up a person's attempts from elsewhere. A browser that is known
//! has attempts of its own. Its cookie opens nothing: without the password it only tries again.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use svc_store::LoginRecord;

use crate::{cookie, error::AppError, secret::Secret, state::App};

const NAME: &str = "console-browser";
const LIFE: Duration = Duration::from_hours(24 * 180);

/// The browser's secret, hashed, if the person of this name has signed in with it.
pub async fn known(
    app: &App,
    headers: &HeaderMap,
    name: &str,
) -> Result<Option<[u8; 32]>, AppError> {
    let Some(secret) = cookie::secret(headers, &app.web, NAME) else {
        return Ok(None);
    };
    let hash = secret.hash();
    let known = app.store.console_browser_known(&hash, name).await?;
    Ok(known.then_some(hash))
}

/// Remembers the browser for a person who has signed in, and returns its new cookie. The old one is forgotten.
pub async fn remember(
    app: &App,
    user: &LoginRecord,
    headers: &HeaderMap,
) -> Result<HeaderValue, AppError> {
    let before = cookie::secret(headers, &app.web, NAME).map(|secret| secret.hash());
    let secret = Secret::generate()?;
    app.store
        .console_browser_remember(&secret.hash(), before.as_ref(), user.id, LIFE)
        .await?;
    cookie::set(&app.web, NAME, secret.expose(), LIFE)
}
