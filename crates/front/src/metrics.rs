//! Metrics of the port's connections and requests.

use std::io;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use svc_common::metrics::{ReasonName, Variant};
use tonic::Code;

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

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    pub method: &'static str,
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
        requests: Family<Label<&'static str>, Counter>, "requests", "Requests of the gRPC port that reached a handler";
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

    /// Shows when the certificate in service, or the first of the client CAs, expires.
    pub fn expiry(&self, certificate: &'static str) -> Gauge {
        let certificate = [("certificate", certificate)];
        self.expiry.get_or_create(&certificate).clone()
    }

    pub fn request(&self, method: &'static str) {
        self.requests.get_or_create(&[("method", method)]).inc();
    }

    pub fn ended(&self, outcome: Outcome) {
        self.ended.get_or_create(&outcome).inc();
    }
}
