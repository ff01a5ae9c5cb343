//! Log lines about client certificates that were refused, for whoever wonders why an agent cannot connect.
//!
//! Anyone can present a bad certificate, so there is at most one line in ten seconds, after a few at once.

use std::{error::Error, io, net::SocketAddr, sync::Mutex, time::Duration};

use rustls::CertificateError;
use tokio::time::Instant;

use crate::{rate::Rate, sync::lock};

const LINES: Rate = Rate::new(Duration::from_secs(10), 5);

#[derive(Debug)]
pub(super) struct CertificateLog(Mutex<Instant>);

impl CertificateLog {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Logs `error` if a handshake failed for the client's certificate.
    pub(super) fn report(&self, peer: SocketAddr, error: &io::Error) {
        let Some(reason) = reason(error) else {
            return;
        };
        if LINES.take(&mut lock(&self.0), Instant::now()).is_ok() {
            tracing::warn!(%peer, reason, "a client certificate was refused");
        }
    }
}

fn reason(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => Some(
            other
                .source()
                .map_or_else(|| other.to_string(), ToString::to_string),
        ),
        rustls::Error::InvalidCertificate(problem) => Some(problem.to_string()),
        _ => None,
    }
}
