//! Metrics in the Prometheus format.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use svc_common::metrics::Exposition;
use svc_store::Store;

const SECONDS: [f64; 10] = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// A route as it was declared, never a path that a client chose.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Route {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// One label and its value. Without a certificate there is none.
type Certificate = [(&'static str, &'static str); 1];

/// What the console counts of itself.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Route, Counter>,
    seconds: Histogram,
    sign_ins: Family<Outcome, Counter>,
    webhooks: Family<Outcome, Counter>,
    certificate_expiry: Family<Certificate, Gauge>,
    pub connections: Gauge,
    pub live_streams: Gauge,
    pub live_views: Gauge,
    pub live_renders: Counter,
}

impl Metrics {
    pub fn new(store: &Store) -> Self {
        let mut registry = Registry::with_prefix("console");
        store.register(&mut registry);
        let mut metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            seconds: Histogram::new(SECONDS),
            sign_ins: Family::default(),
            webhooks: Family::default(),
            certificate_expiry: Family::default(),
            connections: Gauge::default(),
            live_streams: Gauge::default(),
            live_views: Gauge::default(),
            live_renders: Counter::default(),
        };
        metrics.register(&mut registry);
        metrics.registry = Arc::new(registry);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let help = "HTTP requests by route and status";
        registry.register("http_requests", help, self.requests.clone());
        let help = "Time from the request to the head of the response";
        let seconds = self.seconds.clone();
        registry.register_with_unit("http_request", help, Unit::Seconds, seconds);
        let help = "Attempts to sign in, by outcome";
        registry.register("sign_ins", help, self.sign_ins.clone());
        let help = "Notes by webhook, by outcome";
        registry.register("webhooks", help, self.webhooks.clone());
        let help = "When the certificate in service expires, since 1970";
        let name = "certificate_expiry_timestamp_seconds";
        registry.register(name, help, self.certificate_expiry.clone());
        let help = "Open HTTP connections";
        registry.register("http_connections", help, self.connections.clone());
        let help = "Open live streams";
        registry.register("live_streams", help, self.live_streams.clone());
        let help = "Different views that live streams show";
        registry.register("live_views", help, self.live_views.clone());
        let help = "Times that a live view was read and rendered";
        registry.register("live_renders", help, self.live_renders.clone());
    }

    pub fn request(&self, route: &str, status: u16, took: Duration) {
        let route = Route {
            route: route.to_owned(),
            status,
        };
        self.requests.get_or_create(&route).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn sign_in(&self, outcome: &'static str) {
        self.sign_ins.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn webhook(&self, outcome: &'static str) {
        self.webhooks.get_or_create(&Outcome { outcome }).inc();
    }

    /// When the certificate in service expires.
    pub fn certificate_expiry(&self) -> Gauge {
        let certificate = [("certificate", "server")];
        self.certificate_expiry.get_or_create(&certificate).clone()
    }

    pub fn encode(&self, exposition: Exposition) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(exposition.write(text))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Counts something open; dropping it counts it as closed.
#[derive(Debug)]
pub struct Open(Gauge);

impl Open {
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
