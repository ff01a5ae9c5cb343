//! The registry behind `/metrics`, and the metrics of sessions.

use std::sync::{Arc, Mutex};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use svc_common::metrics::{Exposition, ReasonName};

use super::process::{OpenFiles, Process};
use crate::sync::lock;

/// The registry. Every part registers its own metrics, under the prefix `svc_ingest`.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    open_files: Arc<OpenFiles>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let open_files = OpenFiles::default();
        open_files.register(&mut registry);
        let metrics = Self {
            registry: Arc::new(Mutex::new(registry)),
            open_files: Arc::new(open_files),
        };
        let build = Info::new([("version", crate::VERSION)]);
        metrics.register(|ours| ours.register("build", "The version that runs", build));
        metrics
    }
}

impl Metrics {
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        let mut registry = lock(&self.registry);
        register(registry.sub_registry_with_prefix("svc_ingest"));
    }

    /// The text of a scrape.
    pub async fn scrape(&self, exposition: Exposition) -> Result<String, std::fmt::Error> {
        self.open_files.refresh().await;
        let mut page = String::with_capacity(32 * 1024);
        encode(&mut page, &lock(&self.registry))?;
        Ok(exposition.write(page))
    }
}

/// One label and its value.
type Label<T> = [(&'static str, T); 1];

svc_common::metrics! {
    /// Metrics of heartbeat streams and presence.
    pub struct SessionMetrics {
        pub streams: Gauge, "streams", "Open heartbeat streams";
        pub opened: Counter, "streams_opened", "Heartbeat streams opened";
        closed: Family<Label<&'static str>, Counter>, "streams_closed", "Heartbeat streams closed by cause";
        refused: Family<Label<ReasonName>, Counter>, "streams_refused", "Heartbeat streams refused by reason";
        /// From the commit of a revocation to the end of the stream.
        pub revocation_seconds: Histogram = Histogram::new(REVOCATION_SECONDS),
            "revocation_seconds", "From a revocation to the end of the agent's stream";
        /// More than one while the signing key is rotated.
        pub signing_keys: Gauge, "signing_keys", "Keys whose JWTs this instance accepts";
        pub lease: Gauge, "lease_held", "Whether this instance holds its lease";
        pub fenced: Counter, "instances_fenced", "Lost instances that this instance fenced";
        pub settings_sent: Counter, "settings_sent", "Settings sent to agents because they had not received them";
        pub swept: Counter, "agents_swept", "Agents that this instance marked offline because they were lost";
    }
}

const REVOCATION_SECONDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

impl SessionMetrics {
    pub fn closed(&self, cause: &'static str) {
        self.closed.get_or_create(&[("cause", cause)]).inc();
    }

    pub fn refused(&self, reason: Option<&'static str>) {
        let reason = [("reason", ReasonName(reason))];
        self.refused.get_or_create(&reason).inc();
    }
}
