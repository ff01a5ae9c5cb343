//! Log lines about client certificates that were refused. They say why an agent cannot connect.

use std::{error::Error, io, net::SocketAddr};

use rustls::CertificateError;
use svc_common::log_limit::LogLimit;

static REFUSED: LogLimit = LogLimit::new();

/// Logs `error` if a handshake failed for the client's certificate.
pub(super) fn report(peer: SocketAddr, error: &io::Error) {
    if let Some(reason) = reason(error) {
        REFUSED.line(|suppressed| {
            tracing::warn!(%peer, reason, suppressed, "a client certificate was refused");
        });
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
