//! The service as a whole. `bind` opens the ports, so that their addresses are known and problems are
//! reported at once; `run` serves until it is asked to stop.
//!
//! `start` brings a bound server to the point where agents may connect, `instance` is what the parts of a
//! started instance share, and `parts` is the list of them. `worker` is the consumer as a process of its own.

mod instance;
mod parts;
mod start;
mod worker;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use svc_common::tls::Reload;
use svc_front::{
    listener::{Listener, acceptor},
    metrics::ListenerMetrics,
};
use svc_pipeline::{
    export::{Export, Exporter},
    metrics::{ExportMetrics, PipelineMetrics},
};
use svc_store::Store;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Database, Problem, Problems},
    error_chain::chain,
    health::Health,
    http::{HttpServer, Pages},
    load::LoadGauge,
    session::SessionTable,
    startup::StartError,
    supervise::Parts,
    telemetry::{FleetMetrics, Metrics, SessionMetrics},
};

pub use worker::Worker;

/// How much longer than the drain timeout the client-facing parts may take to end.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

/// A bound server.
pub struct Server {
    config: Config,
    store: Store,
    port: GrpcPort,
    http: HttpServer,
    pages: Pages,
    sessions: Arc<SessionTable>,
    pipeline: PipelineMetrics,
    fleet: FleetMetrics,
    export: Export,
    exporter: Option<Exporter>,
}

/// The gRPC port and its certificate.
struct GrpcPort {
    listener: Listener,
    tls: TlsAcceptor,
    reload: Reload,
}

/// Why the service ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Part(#[from] anyhow::Error),
}

impl Server {
    /// Opens both ports. The gRPC port serves nothing before `run`.
    pub async fn bind(config: Config) -> Result<Self, Problems> {
        let store = open_store(&config.database)?;
        let (metrics, pipeline) = (Metrics::default(), PipelineMetrics::default());
        let fleet = FleetMetrics::default();
        let (listener_metrics, session_metrics) =
            (ListenerMetrics::default(), SessionMetrics::default());
        metrics.register(|registry| store.register(registry));
        metrics.register(|registry| listener_metrics.register(registry));
        metrics.register(|registry| session_metrics.register(registry));
        metrics.register(|registry| pipeline.register(registry));
        metrics.register(|registry| fleet.register(registry));
        let export_metrics = ExportMetrics::default();
        metrics.register(|registry| export_metrics.register(registry));
        let (export, exporter) = Export::new(config.export.clone(), &store, &export_metrics)
            .map_err(|error| Problems::one("INGEST_OTLP_ENDPOINT", error))?;
        let grpc = &config.grpc;
        let tls = acceptor(grpc.tls.clone(), grpc.client_ca.clone(), &listener_metrics);
        let (tls, reload) = tls.map_err(|error| Problems::one("INGEST_TLS_CLIENT_CA", error))?;
        let listener = Listener::bind(grpc.address, grpc.limits, listener_metrics).await;
        let listener = listener.map_err(port_problem("INGEST_GRPC_PORT", grpc.address));
        let http = HttpServer::bind(config.http).await;
        let http = http.map_err(port_problem("INGEST_HTTP_PORT", config.http));
        let (listener, http) = both(listener, http)?;
        let listener = listener.behind(grpc.proxies.clone());
        let pages = Pages::new(&store, metrics, config.timing.health_grace);
        Ok(Self {
            config,
            store,
            port: GrpcPort {
                listener,
                tls,
                reload,
            },
            http,
            pages,
            sessions: Arc::new(SessionTable::new(session_metrics)),
            pipeline,
            fleet,
            export,
            exporter,
        })
    }

    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.port.listener.address()
    }

    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.address()
    }

    /// Starts, serves until `stop`, drains, and returns.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let shown = |address: SocketAddr| address.to_string();
        let addresses = [self.grpc_address(), self.http_address()];
        let addresses = addresses.map(|address| address.map(shown).unwrap_or_default());
        let Self {
            config,
            store,
            port,
            http,
            pages,
            sessions,
            pipeline,
            fleet,
            export,
            exporter,
        } = self;
        let expiry = port.reload.expires_at();
        let load = LoadGauge::new(&config, sessions.clone(), pipeline.clone(), expiry);
        let drain = config.drain_timeout + DRAIN_MARGIN;
        let health = pages.health.clone();
        let (leave, delay) = (CancellationToken::new(), config.drain_delay);
        let mut parts = Parts::new(leave.clone());
        parts.back("the HTTP port", http.run(pages.clone(), parts.last.clone()));
        let starting = start::start(
            config,
            store,
            pages,
            load,
            sessions,
            (pipeline, fleet, export),
            &addresses,
        );
        match stop.run_until_cancelled(starting).await {
            Some(started) => {
                let (instance, lease) = started?;
                if let Some(exporter) = exporter {
                    let export = exporter.run(instance.queue.clone(), parts.last.clone());
                    parts.back("the export", export);
                }
                parts::add_all(&mut parts, &instance, lease, port)?;
                health.serving();
            }
            None => leave.cancel(),
        }
        let leaving = leave_after(&stop, delay, &health, &leave);
        let (ended, ()) = tokio::join!(parts.run(drain, || health.draining()), leaving);
        Ok(ended?)
    }
}

/// Begins the drain `delay` after the stop. Until then the port serves as before, and only `/healthz` says that the
/// instance is stopping: a load balancer takes it out before the first agent is sent away, and no agent comes back.
async fn leave_after(
    stop: &CancellationToken,
    delay: Duration,
    health: &Health,
    leave: &CancellationToken,
) {
    let stopped = leave.run_until_cancelled(stop.cancelled()).await;
    if stopped.is_some() {
        health.draining();
        leave.run_until_cancelled(tokio::time::sleep(delay)).await;
        leave.cancel();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("grpc", &self.port.listener)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

fn open_store(database: &Database) -> Result<Store, Problems> {
    let options = database.store_options(database.pool_size);
    Store::new(database.url.clone(), options)
        .map_err(|error| Problems::one("DATABASE_URL", chain(&error)))
}

/// Both ports, or everything that is wrong with either.
fn both<A, B>(grpc: Result<A, Problem>, http: Result<B, Problem>) -> Result<(A, B), Problems> {
    match (grpc, http) {
        (Ok(grpc), Ok(http)) => Ok((grpc, http)),
        (grpc, http) => Err(Problems(grpc.err().into_iter().chain(http.err()).collect())),
    }
}

fn port_problem(variable: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> Problem {
    move |error| {
        let message = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("{address} is taken by another process: stop it, or choose another port")
            }
            _ => format!("{address} cannot be bound: {error}"),
        };
        Problem { variable, message }
    }
}
