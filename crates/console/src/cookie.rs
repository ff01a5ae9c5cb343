//! Cookies that hold a secret: not readable by scripts, not sent along with other sites' forms, and over HTTPS with the
//! prefix `__Host-`, which no other host can set.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};

use crate::{config::Web, error::AppError, secret::Secret};

/// The header that sets a cookie, or removes it after no time.
pub fn set(web: &Web, name: &str, value: &str, life: Duration) -> Result<HeaderValue, AppError> {
    let secure = if web.is_https() { "; Secure" } else { "" };
    let (name, seconds) = (full_name(web, name), life.as_secs());
    let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    let mut cookie = HeaderValue::from_str(&text)
        .map_err(|_| AppError::Internal("a cookie cannot be written"))?;
    cookie.set_sensitive(true);
    Ok(cookie)
}

/// The secret of a cookie that the client sent. Only its form is checked.
pub fn secret(headers: &HeaderMap, web: &Web, name: &str) -> Option<Secret> {
    let name = full_name(web, name);
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then(|| Secret::parse(value)).flatten()
    })
}

/// Browsers refuse `__Host-` cookies without HTTPS.
fn full_name(web: &Web, name: &str) -> String {
    match web.is_https() {
        true => format!("__Host-{name}"),
        false => name.to_owned(),
    }
}
