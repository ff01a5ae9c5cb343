//! The state that handlers share, and the routes with their limits.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use svc_store::Store;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tower_http::{
    CompressionLevel, compression::CompressionLayer, csrf::CsrfLayer, timeout::TimeoutLayer,
};

use crate::{
    assets, auth,
    auth::Doors,
    config::{Config, Install, Web},
    download, error,
    feed::News,
    live::Hub,
    pages, security,
    telemetry::Metrics,
    webhook::{self, Verifier},
};

/// A request with its body must be read and answered within this time.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);
/// Forms are small; the largest is a selection of hosts.
const BODY_BYTES: usize = 256 * 1024;
/// How long the database may be away before `/healthz` reports it.
const HEALTH_GRACE: Duration = Duration::from_secs(60);

/// Shared by all handlers; clones are cheap.
#[derive(Clone, Debug)]
pub struct App {
    pub store: Store,
    pub metrics: Metrics,
    pub web: Arc<Web>,
    pub install: Arc<Install>,
    pub news: watch::Receiver<News>,
    pub live: Hub,
    pub doors: Arc<Doors>,
    pub verifier: Verifier,
    pub started: Instant,
    ready: Arc<AtomicBool>,
    stop: Arc<OnceLock<CancellationToken>>,
}

impl App {
    pub fn new(
        config: Config,
        store: Store,
        news: watch::Receiver<News>,
        verifier: Verifier,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::new(&store);
        Ok(Self {
            live: Hub::new(metrics.clone()),
            doors: Arc::new(Doors::new()?),
            store,
            metrics,
            web: Arc::new(config.web),
            install: Arc::new(config.install),
            news,
            verifier,
            started: Instant::now(),
            ready: Arc::default(),
            stop: Arc::default(),
        })
    }

    pub fn schema_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Streams end when `stop` is cancelled.
    pub fn stop_with(&self, stop: &CancellationToken) {
        drop(self.stop.set(stop.clone()));
    }

    pub fn stopping(&self) -> CancellationToken {
        self.stop.get().cloned().unwrap_or_default()
    }

    pub fn router(&self) -> anyhow::Result<Router> {
        let csrf = CsrfLayer::new().add_trusted_origin(self.web.origin())?;
        let app = self.clone();
        Ok(Router::new()
            .route("/healthz", get(healthz))
            .route("/metrics", get(metrics))
            .route("/assets/{name}", get(assets::serve))
            .route("/favicon.svg", get(assets::favicon))
            .route("/api/v1/notes", post(webhook::note))
            .route(
                "/download/svc-agent/{version}/{os}/{arch}/{file}",
                get(download::release),
            )
            .route("/install.sh", get(download::script))
            .merge(auth::routes())
            .merge(pages::routes())
            .fallback(|| async { error::AppError::NotFound("There is no such page.") })
            .layer(csrf)
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .layer(TimeoutLayer::with_status_code(
                StatusCode::REQUEST_TIMEOUT,
                REQUEST_DEADLINE,
            ))
            .layer(middleware::from_fn(error::render))
            .layer(middleware::from_fn_with_state(
                app.clone(),
                security::headers,
            ))
            .layer(CompressionLayer::new().quality(CompressionLevel::Best))
            .layer(middleware::from_fn_with_state(app.clone(), observe))
            .with_state(app))
    }

    /// Why the console is not healthy.
    fn ill(&self) -> Option<&'static str> {
        if !self.ready.load(Ordering::Acquire) {
            return Some("the schema is not ready");
        }
        let last = self.store.last_success().unwrap_or(self.started);
        (last.elapsed() > HEALTH_GRACE).then_some("the database is away")
    }
}

async fn healthz(State(app): State<App>) -> (StatusCode, &'static str) {
    match app.ill() {
        None => (StatusCode::OK, "ok"),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

/// For scrapers inside. A request that a proxy forwarded comes from outside and finds nothing.
async fn metrics(State(app): State<App>, request: Request) -> Result<Response, error::AppError> {
    if request.headers().contains_key("x-forwarded-for") {
        return Err(error::AppError::NotFound("There is no such page."));
    }
    let text = app.metrics.encode();
    let text = text.map_err(|_| error::AppError::Internal("metrics cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(assets::typed(kind, text))
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
