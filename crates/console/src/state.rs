//! The state that handlers share. It knows no handler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use svc_store::{Bulkhead, Store, StoreError};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    clients::Clients,
    config::{Config, Install, Web},
    doors::Doors,
    error::SCHEMA_BEHIND,
    feed::News,
    jwks::Verifier,
    live::Hub,
    telemetry::Metrics,
    throttle::Throttle,
};

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
    pub clients: Arc<Clients>,
    pub throttle: Arc<Throttle>,
    pub verifier: Verifier,
    /// Cancelled when the console stops. Streams end then.
    pub stop: CancellationToken,
    started: Instant,
    ready: Arc<AtomicBool>,
    has_people: Arc<AtomicBool>,
    service_schema: Arc<AtomicU8>,
}

/// The schema of the service, as this console needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceSchema {
    Unknown,
    Behind,
    Ready,
}

impl App {
    pub fn new(
        config: &Config,
        store: Store,
        news: watch::Receiver<News>,
        verifier: Verifier,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::new(&store);
        Ok(Self {
            live: Hub::new(metrics.clone()),
            doors: Arc::new(Doors::new()?),
            clients: Arc::new(Clients::new(store.connections(Bulkhead::Ingest))),
            throttle: Arc::new(Throttle::new(config.install.download_rate)),
            has_people: Arc::default(),
            store,
            metrics,
            web: Arc::new(config.web.clone()),
            install: Arc::new(config.install.clone()),
            news,
            verifier,
            stop,
            started: Instant::now(),
            ready: Arc::default(),
            service_schema: Arc::new(AtomicU8::new(ServiceSchema::Unknown as u8)),
        })
    }

    pub fn schema_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Whether anybody can sign in. Strangers ask, so a yes is remembered.
    pub async fn has_people(&self) -> Result<bool, StoreError> {
        if !self.has_people.load(Ordering::Relaxed) {
            let has = self.store.console_has_users().await?;
            self.has_people.store(has, Ordering::Relaxed);
        }
        Ok(self.has_people.load(Ordering::Relaxed))
    }

    pub fn set_service_schema(&self, schema: ServiceSchema) {
        self.service_schema.store(schema as u8, Ordering::Release);
    }

    /// Whether the service has not migrated its schema to what the pages need.
    pub fn schema_is_behind(&self) -> bool {
        self.service_schema.load(Ordering::Acquire) == ServiceSchema::Behind as u8
    }

    /// Why the console is not healthy.
    pub fn ill(&self) -> Option<&'static str> {
        if self.schema_is_behind() {
            return Some(SCHEMA_BEHIND);
        }
        let service = self.service_schema.load(Ordering::Acquire) == ServiceSchema::Ready as u8;
        if !(service && self.ready.load(Ordering::Acquire)) {
            return Some("the schema is not ready");
        }
        let last = self.store.last_success().unwrap_or(self.started);
        (last.elapsed() > HEALTH_GRACE).then_some("the database is away")
    }
}
