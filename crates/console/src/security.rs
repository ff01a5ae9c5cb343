//! Headers of every response. Scripts and styles come from files of our own only, so text that an
//! agent chose cannot run, even where it would get into a page unescaped.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

use crate::state::App;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

const HTTPS_ONLY: &str = "max-age=31536000";

pub async fn headers(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if app.web.is_https() {
        let value = HeaderValue::from_static(HTTPS_ONLY);
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    keep_private(headers);
    response
}

/// Pages show what their reader may see: no cache keeps them. htmx asks for parts of the same URLs.
fn keep_private(headers: &mut HeaderMap) {
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    headers.append(header::VARY, HeaderValue::from_static("HX-Request"));
}
