//! The responses of the HTTP port.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use svc_common::metrics::Exposition;
use svc_store::Store;

use crate::{
    health::Health,
    signing::{JWKS_MAX_AGE, Jwks},
    telemetry::Metrics,
};

/// What the responses are made of.
#[derive(Clone, Debug)]
pub struct Pages {
    pub health: Health,
    pub metrics: Metrics,
    /// Empty until the signing key is known.
    pub jwks: Arc<OnceLock<Jwks>>,
}

impl Pages {
    pub fn new(store: &Store, metrics: Metrics, health_grace: Duration) -> Self {
        Self {
            health: Health::new(store.clone(), health_grace),
            metrics,
            jwks: Arc::default(),
        }
    }

    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/.well-known/jwks.json", get(jwks))
            .route("/metrics", get(metrics))
            .fallback(|| async { (StatusCode::NOT_FOUND, "not found\n") })
            .with_state(self)
    }
}

async fn healthz(State(pages): State<Pages>) -> Response {
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    match pages.health.verdict() {
        Ok(()) => (no_store, "ok").into_response(),
        Err(reason) => unavailable((no_store, format!("{reason}\n"))),
    }
}

async fn jwks(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let Some(jwks) = pages.jwks.get() else {
        return unavailable("the signing key is not loaded yet\n");
    };
    let max_age = format!("public, max-age={}", JWKS_MAX_AGE.as_secs());
    let caching = [
        (header::CACHE_CONTROL, max_age.as_str()),
        (header::ETAG, jwks.etag.as_str()),
    ];
    if is_fresh(&headers, &jwks.etag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    let json = [(header::CONTENT_TYPE, "application/json")];
    (caching, json, jwks.body.clone()).into_response()
}

fn unavailable(response: impl IntoResponse) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, response).into_response()
}

/// RFC 9110: `If-None-Match` compares weakly, and `*` matches any document.
fn is_fresh(headers: &HeaderMap, etag: &str) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter();
    tags.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let exposition = Exposition::negotiated(&headers);
    match pages.metrics.scrape(exposition).await {
        Ok(text) => (exposition.headers(), text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
