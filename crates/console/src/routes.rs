//! All routes, and the layers that every request passes.

use std::time::Duration;

use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use svc_common::metrics::Exposition;
use tokio::time::Instant;
use tower_http::{
    compression::{
        CompressionLayer, DefaultPredicate,
        predicate::{NotForContentType, Predicate},
    },
    csrf::CsrfLayer,
    timeout::TimeoutLayer,
};

use crate::{
    address::{Peer, client},
    assets,
    download::{self, DOWNLOAD},
    error::{self, AppError},
    pages::{
        activity, agent, approvals, bulk, fleet, host, hosts, live, me, people, plots, rollout,
        service, settings, sign_in, tokens, trust, updates, welcome,
    },
    security,
    slots::hold,
    state::App,
    webhook,
};

/// A request with its body must be read and answered within this time.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);
/// Forms are small; the largest is a selection of hosts.
const BODY_BYTES: usize = 256 * 1024;
const NO_PAGE: AppError = AppError::NotFound("There is no such page.");

pub fn router(app: &App) -> anyhow::Result<Router> {
    // Anyone may download, and packages are compressed already. Assets are compressed once, in `assets`.
    let compressed = DefaultPredicate::new().and(NotForContentType::const_new(DOWNLOAD));
    let csrf = CsrfLayer::new().add_trusted_origin(app.web.origin())?;
    Ok(handlers(app)
        .fallback(|| async { NO_PAGE })
        .layer(csrf)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            REQUEST_DEADLINE,
        ))
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .layer(middleware::from_fn(error::render))
        .layer(middleware::from_fn_with_state(
            app.clone(),
            security::headers,
        ))
        .layer(CompressionLayer::new().compress_when(compressed))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app.clone()))
}

fn handlers(app: &App) -> Router<App> {
    let release = "/download/svc-agent/{version}/{os}/{arch}/{file}";
    let gate = middleware::from_fn_with_state(app.clone(), migrated);
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/assets/{name}", get(assets::serve))
        .route("/favicon.svg", get(assets::favicon))
        .route(release, get(download::release))
        .route("/download/svc-agent/{version}/{file}", get(download::sums))
        .route("/download/{sha256}", get(download::content::program))
        .route("/install.sh", get(download::script))
        .merge(pages().route_layer(gate))
}

/// What reads the service's tables.
fn pages() -> Router<App> {
    Router::new()
        .route("/api/v1/notes", post(webhook::note))
        .route("/sign-in", get(sign_in::page).post(sign_in::submit))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/welcome", get(welcome::page).post(welcome::open))
        .route("/welcome/password", post(welcome::set_password))
        .route("/", get(fleet::page))
        .route("/hosts", get(hosts::page))
        // A preview or a result that is loaded again, or returned to after signing in, leads to its list.
        .route("/hosts/bulk", get(hosts::list_page).post(bulk::preview))
        .route("/hosts/bulk/apply", get(hosts::list_page).post(bulk::apply))
        .route("/hosts/{id}", get(host::page))
        .route("/hosts/{id}/series", get(plots::series))
        .route("/hosts/{id}/values", get(plots::values::page))
        .route("/hosts/{id}/note", post(host::note))
        .route("/hosts/{id}/labels", post(host::labels))
        .route("/hosts/{id}/retire", post(host::retire))
        .route("/agents/{id}", get(agent::page))
        .route("/agents/{id}/decide", post(agent::decide))
        .route("/approvals", get(approvals::page))
        .route(
            "/approvals/approve",
            get(approvals::list_page).post(approvals::approve),
        )
        .route("/tokens", get(tokens::page).post(tokens::create))
        .route("/tokens/{id}", get(tokens::show))
        .route("/tokens/{id}/revoke", post(tokens::revoke))
        .route("/updates", get(updates::page).post(updates::start))
        .route(
            "/updates/{serial}",
            get(rollout::page).post(rollout::change),
        )
        .route("/settings", get(settings::page).post(settings::change))
        .route("/trust", get(trust::page))
        .route("/activity", get(activity::page))
        .route("/activity/export", get(activity::export))
        .route("/service", get(service::page))
        .route("/people", get(people::page).post(people::add))
        .route("/people/{name}", post(people::change))
        .route("/me", get(me::page))
        .route("/me/password", post(me::set_password))
        .route("/me/sessions", post(me::end_sessions))
        .route("/live", get(live::live))
}

/// Until the service has migrated its schema, the pages say so.
async fn migrated(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    match app.schema_is_behind() {
        true => Err(AppError::SchemaBehind),
        false => Ok(next.run(request).await),
    }
}

async fn healthz(State(app): State<App>) -> (StatusCode, &'static str) {
    match app.ill() {
        None => (StatusCode::OK, "ok"),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

/// For scrapers inside. A request that a proxy forwarded comes from outside and finds nothing.
async fn metrics(State(app): State<App>, request: Request) -> Result<Response, AppError> {
    if request.headers().contains_key("x-forwarded-for") {
        return Err(NO_PAGE);
    }
    let exposition = Exposition::negotiated(request.headers());
    let text = app.metrics.encode(exposition);
    let text = text.map_err(|_| AppError::Internal("metrics cannot be written"))?;
    Ok((exposition.headers(), text).into_response())
}

/// Counts a request for its client, until its response was sent.
async fn count(State(app): State<App>, request: Request, next: Next) -> Result<Response, AppError> {
    let (proxies, headers) = (&app.web.trusted_proxies, request.headers());
    let address = client(request.extensions(), headers, proxies);
    let address = address.ok_or(AppError::Internal("a request without an address"))?;
    if let Some(Peer(peer)) = request.extensions().get::<Peer>()
        && headers.contains_key("x-forwarded-for")
        && !proxies.contain(peer.ip())
    {
        app.clients.forwarded_by(peer.ip().to_canonical());
    }
    let slot = app.clients.request(address)?;
    Ok(hold(next.run(request).await, slot))
}

async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    app.metrics.request(&route, status, began.elapsed());
    response
}
