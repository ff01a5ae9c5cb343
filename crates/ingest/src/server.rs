//! The service as a whole: bound first, so that the addresses are known and
//! problems are reported at once, then run until it is asked to stop.

mod parts;
mod start;
mod worker;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use svc_store::{Store, StoreOptions};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Agents, Config, Database, Problem, Problems, Queue, Retention},
    health::Health,
    http::{HttpServer, Pages},
    listener::{Listener, Reload},
    session::Sessions,
    startup::StartError,
    supervise::Parts,
    telemetry::{ListenerMetrics, Metrics, PipelineMetrics, SessionMetrics},
};

pub use worker::Worker;

/// What the front row may take beyond the drain timeout to notice that it is over.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

pub struct Server {
    settings: Settings,
    store: Store,
    listener: Listener,
    tls: TlsAcceptor,
    reload: Reload,
    http: HttpServer,
    pages: Pages,
    sessions: Arc<Sessions>,
    pipeline: PipelineMetrics,
}

/// What remains of the configuration once everything is opened.
struct Settings {
    database: Database,
    jwt_key_file: std::path::PathBuf,
    queue: Queue,
    agents: Agents,
    retention: Retention,
    drain_timeout: Duration,
    timing: crate::config::Timing,
    bystanders: usize,
}

/// The gRPC port and its certificates, opened.
struct Doors {
    listener: Listener,
    tls: TlsAcceptor,
    reload: Reload,
}

/// Why the service ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Part(#[from] anyhow::Error),
}

impl Server {
    /// Opens both ports. Nothing is served on the gRPC port before `run`.
    pub async fn bind(config: Config) -> Result<Self, Problems> {
        let metrics = Metrics::new();
        let store = open_store(&config.database)?;
        let listener_metrics = ListenerMetrics::default();
        metrics.register(|registry| store.register(registry));
        let session_metrics = SessionMetrics::default();
        metrics.register(|registry| listener_metrics.register(registry));
        metrics.register(|registry| session_metrics.register(registry));
        let pipeline = PipelineMetrics::default();
        metrics.register(|registry| pipeline.register(registry));
        let limits = config.grpc.limits;
        let (tls, reload) = Reload::new(config.grpc.tls, config.grpc.client_ca)
            .map_err(|error| Problems::one("INGEST_TLS_CLIENT_CA", error))?;
        let listener = Listener::bind(config.grpc.address, limits, listener_metrics).await;
        let http = HttpServer::bind(config.http).await;
        let (listener, http) = both_ports((config.grpc.address, listener), (config.http, http))?;
        let health = Health::new(store.clone(), config.timing.health_grace);
        let settings = Settings {
            database: config.database,
            jwt_key_file: config.jwt_key_file,
            queue: config.queue,
            agents: config.agents,
            retention: config.retention,
            drain_timeout: config.drain_timeout,
            timing: config.timing,
            bystanders: (limits.connections / 10).max(1),
        };
        let pages = Pages {
            health,
            metrics,
            jwks: Arc::new(OnceLock::new()),
        };
        Ok(Self {
            settings,
            store,
            listener,
            tls,
            reload,
            http,
            pages,
            sessions: Arc::new(Sessions::new(session_metrics)),
            pipeline,
        })
    }

    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.listener.address()
    }

    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.address()
    }

    /// Starts, serves until `stop`, drains, and returns.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let addresses =
            [self.grpc_address(), self.http_address()].map(|address| shown(address.ok()));
        let Self {
            settings,
            store,
            listener,
            tls,
            reload,
            http,
            pages,
            sessions,
            pipeline,
        } = self;
        let health = pages.health.clone();
        let mut parts = Parts::new(stop.clone());
        parts.back("the HTTP port", http.run(pages.clone(), parts.last.clone()));
        let starting = start::start(&settings, &store, &pages, &sessions, &addresses);
        if let Some(started) = stop.run_until_cancelled(starting).await {
            let started = started?;
            let doors = Doors {
                listener,
                tls,
                reload,
            };
            let shared = parts::Shared {
                store,
                sessions,
                pipeline,
            };
            parts::add_all(&mut parts, &settings, shared, started, &health, doors)?;
            health.serving();
        }
        parts
            .run(settings.drain_timeout + DRAIN_MARGIN, || health.draining())
            .await?;
        Ok(())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("grpc", &self.listener)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

fn open_store(database: &Database) -> Result<Store, Problems> {
    let options = StoreOptions {
        pool_size: database.pool_size,
        ..StoreOptions::default()
    };
    Store::new(database.url.clone(), options)
        .map_err(|error| Problems::one("DATABASE_URL", chain(error)))
}

/// Both ports, or everything that is wrong with either.
fn both_ports<A, B>(
    (grpc_address, grpc): (SocketAddr, io::Result<A>),
    (http_address, http): (SocketAddr, io::Result<B>),
) -> Result<(A, B), Problems> {
    match (grpc, http) {
        (Ok(grpc), Ok(http)) => Ok((grpc, http)),
        (grpc, http) => Err(Problems(
            [
                grpc.err()
                    .map(|error| port_problem("INGEST_GRPC_PORT", grpc_address, &error)),
                http.err()
                    .map(|error| port_problem("INGEST_HTTP_PORT", http_address, &error)),
            ]
            .into_iter()
            .flatten()
            .collect(),
        )),
    }
}

fn port_problem(variable: &'static str, address: SocketAddr, error: &io::Error) -> Problem {
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is taken by another process: stop it, or choose another port")
        }
        _ => format!("{address} cannot be bound: {error}"),
    };
    Problem { variable, message }
}

fn shown(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.to_string())
        .unwrap_or_default()
}

fn chain(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("{:#}", anyhow::Error::from(error))
}
