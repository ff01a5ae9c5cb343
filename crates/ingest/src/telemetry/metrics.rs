//! The registry behind `/metrics`, and the metrics of connections and sessions.

use std::{
    io,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use tonic::Code;

use super::{
    Exposition, ReasonName, Variant,
    process::{OpenFiles, Process},
};
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

/// The result of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handshake {
    Ok,
    Timeout,
    NoCertificate,
    BadCertificate,
    NotTls,
    /// A connection from a load balancer that does not say whose it is.
    NoProxyHeader,
    Closed,
    Failed,
}

impl Handshake {
    pub fn of(error: &io::Error) -> Self {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(rustls::Error::InvalidCertificate(_)) => Self::BadCertificate,
            Some(rustls::Error::InvalidMessage(_)) => Self::NotTls,
            Some(_) => Self::Failed,
            None => Self::Closed,
        }
    }
}

/// What a request of the gRPC port calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    Register,
    Heartbeat,
    Health,
    Reflection,
    Other,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    pub method: Variant<Method>,
    pub code: Variant<Code>,
    pub reason: ReasonName,
}

/// One label and its value.
type Label<T> = [(&'static str, T); 1];

svc_common::metrics! {
    /// Metrics of the gRPC port's connections.
    pub struct ListenerMetrics {
        pub connections: Gauge, "connections", "Open connections of the gRPC port";
        pub unproven: Gauge, "connections_unproven", "Open connections without a successful Register or Heartbeat";
        pub evicted: Counter, "connections_evicted", "Unproven connections closed to make room for new ones";
        pub shed: Counter, "connections_shed", "Connections closed because the limit was reached";
        pub accept_errors: Counter, "accept_errors", "Failures to accept a connection";
        requests: Family<Label<Variant<Method>>, Counter>, "requests", "Requests of the gRPC port that reached a handler";
        ended: Family<Outcome, Counter>, "requests_ended", "Requests of the gRPC port that have ended";
        expiry: Family<Label<&'static str>, Gauge>,
            "certificate_expiry_timestamp_seconds", "When a certificate expires, since 1970";
        handshakes: Family<Label<Variant<Handshake>>, Counter>, "handshakes", "TLS handshakes by result";
    }
}

impl ListenerMetrics {
    pub fn handshake(&self, result: Handshake) {
        let result = [("result", Variant(result))];
        self.handshakes.get_or_create(&result).inc();
    }

    /// When the certificate in service, or the first of the client CAs, expires.
    pub fn certificate_expires(&self, certificate: &'static str, at: Timestamp) {
        let certificate = [("certificate", certificate)];
        self.expiry.get_or_create(&certificate).set(at.as_second());
    }

    pub fn request(&self, method: Method) {
        let method = [("method", Variant(method))];
        self.requests.get_or_create(&method).inc();
    }

    pub fn ended(&self, outcome: Outcome) {
        self.ended.get_or_create(&outcome).inc();
    }
}

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
