//! The registry behind `/metrics`, and the metrics of connections and sessions.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use super::process::Process;

/// The registry. Every part registers its own metrics, under the prefix `svc_ingest`.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let metrics = Self(Arc::new(Mutex::new(registry)));
        let build = Info::new([("version", crate::VERSION)]);
        metrics.register(|ours| ours.register("build", "The version that runs", build));
        metrics
    }

    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        register(registry.sub_registry_with_prefix("svc_ingest"));
    }

    /// The text of a scrape.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        encode(
            &mut text,
            &self.0.lock().unwrap_or_else(PoisonError::into_inner),
        )?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Handshake {
    Ok,
    Timeout,
    NoCertificate,
    BadCertificate,
    NotTls,
    Closed,
    Failed,
}

impl Handshake {
    pub fn of(error: &io::Error) -> Self {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            Some(rustls::Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(rustls::Error::InvalidCertificate(_)) => Self::BadCertificate,
            Some(rustls::Error::InvalidMessage(_)) => Self::NotTls,
            Some(_) => Self::Failed,
            None => Self::Closed,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandshakeLabels {
    result: Handshake,
}

/// Metrics of the gRPC port's connections.
#[derive(Clone, Debug, Default)]
pub struct ListenerMetrics {
    pub connections: Gauge,
    pub shed: Counter,
    pub accept_errors: Counter,
    pub requests: Counter,
    handshakes: Family<HandshakeLabels, Counter>,
}

impl ListenerMetrics {
    pub fn handshake(&self, result: Handshake) {
        self.handshakes
            .get_or_create(&HandshakeLabels { result })
            .inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        register! { registry, self;
            connections => "connections", "Open connections of the gRPC port";
            shed => "connections_shed", "Connections closed because the limit was reached";
            accept_errors => "accept_errors", "Failures to accept a connection";
            requests => "requests", "Requests of the gRPC port that reached a handler";
            handshakes => "handshakes", "TLS handshakes by result";
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Metrics of heartbeat streams and presence.
#[derive(Clone, Debug)]
pub struct SessionMetrics {
    pub streams: Gauge,
    pub opened: Counter,
    pub fenced: Counter,
    pub swept: Counter,
    /// 1 while this instance holds its lease.
    pub lease: Gauge,
    /// From the commit of a revocation to the end of the stream.
    pub revocation_seconds: Histogram,
    closed: Family<CauseLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
}

impl Default for SessionMetrics {
    fn default() -> Self {
        Self {
            streams: Gauge::default(),
            opened: Counter::default(),
            fenced: Counter::default(),
            swept: Counter::default(),
            lease: Gauge::default(),
            revocation_seconds: Histogram::new([
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ]),
            closed: Family::default(),
            refused: Family::default(),
        }
    }
}

impl SessionMetrics {
    pub fn closed(&self, cause: &'static str) {
        self.closed.get_or_create(&CauseLabels { cause }).inc();
    }

    pub fn refused(&self, reason: Option<&'static str>) {
        let reason = reason.unwrap_or("none");
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        register! { registry, self;
            streams => "streams", "Open heartbeat streams";
            opened => "streams_opened", "Heartbeat streams opened";
            closed => "streams_closed", "Heartbeat streams closed by cause";
            refused => "streams_refused", "Heartbeat streams refused by reason";
            revocation_seconds => "revocation_seconds", "From a revocation to the end of the agent's stream";
            lease => "lease_held", "Whether this instance holds its lease";
            fenced => "instances_fenced", "Lost instances that this instance fenced";
            swept => "agents_swept", "Agents that this instance marked offline because they were lost";
        }
    }
}
