//! Why a stream ended, or the attempt to open one failed.

use std::{borrow::Cow, error::Error, io, time::Duration};

use http::HeaderMap;
use rustls::CertificateError;
use svc_proto::{
    contract::{Action, DOMAIN},
    v1::AgentStatus,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::wire::WireError;

#[derive(Debug)]
pub enum Failure {
    /// No TCP connection.
    Unreachable(io::ErrorKind),
    /// No TLS connection, and what is wrong with the server's certificate, if that is why.
    Handshake(Option<CertificateError>),
    /// The connection ended without a gRPC status.
    Closed,
    /// Connecting took too long.
    Timeout,
    /// The service answers nothing any more, not even a ping.
    PingTimeout,
    /// The call ended with a gRPC status.
    Refused {
        code: Code,
        /// The reason's name on the wire, or empty.
        reason: String,
        retry_after: Option<Duration>,
    },
    /// The service sent what the contract does not allow.
    Malformed(WireError),
    /// The agent is not active: its registration is pending, rejected or revoked.
    NotAdmitted(AgentStatus),
    /// The agent's key could not be derived.
    NoIdentity,
}

/// Why a stream ended.
#[derive(Debug)]
pub enum StreamEnd {
    Failed(Failure),
    /// The drain slot has come. The old stream stays open until the next one is welcomed.
    Drained,
    /// An order cut the connection.
    Cut,
    /// The run is over.
    Left,
}

impl Failure {
    /// From the headers that end a call. A stream that ends with OK, without a Goodbye of the agent,
    /// has failed like any other.
    pub fn from_trailers(trailers: &HeaderMap) -> Failure {
        let Some(status) = Status::from_header_map(trailers) else {
            return Failure::Closed;
        };
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN);
        Failure::Refused {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
        }
    }

    pub fn from_handshake(error: &io::Error) -> Failure {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        Failure::Handshake(match inner {
            Some(rustls::Error::InvalidCertificate(problem)) => Some(problem.clone()),
            _ => None,
        })
    }

    /// The name under which the failure is counted.
    pub fn label(&self) -> Cow<'_, str> {
        match self {
            Failure::Unreachable(kind) => format!("unreachable: {kind}").into(),
            Failure::Handshake(None) => "TLS handshake failed".into(),
            Failure::Handshake(Some(problem)) => {
                format!("TLS handshake failed: {}", explained(problem)).into()
            }
            Failure::Closed => "connection closed".into(),
            Failure::Timeout => "timeout".into(),
            Failure::PingTimeout => "ping timeout".into(),
            Failure::Refused { code, reason, .. } if reason.is_empty() => {
                format!("{code:?}").into()
            }
            Failure::Refused { reason, .. } => reason.as_str().into(),
            Failure::Malformed(error) => error.to_string().into(),
            Failure::NotAdmitted(status) => {
                format!("not admitted: {}", status.as_str_name()).into()
            }
            Failure::NoIdentity => "no identity".into(),
        }
    }

    pub fn action(&self) -> Action {
        match self {
            Failure::Refused { code, reason, .. } => Action::for_status(*code, reason),
            Failure::NotAdmitted(_) => Action::WaitForPerson,
            _ => Action::Reconnect,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What is wrong with the server's certificate, and what to do about the usual cases.
fn explained(problem: &CertificateError) -> Cow<'static, str> {
    let other = match problem {
        CertificateError::UnknownIssuer => {
            return "no certificate of --ca-cert has signed the server's certificate".into();
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            return "the server's certificate has another name: set --server-name".into();
        }
        CertificateError::Other(other) => other.source(),
        _ => None,
    };
    match other.and_then(|other| other.downcast_ref()) {
        Some(webpki::Error::CaUsedAsEndEntity) => {
            "the server's certificate is marked as a CA (CA:TRUE), as `openssl req -x509` does: make it with \
             -addext basicConstraints=critical,CA:FALSE, or sign it by a CA and pass that as --ca-cert"
                .into()
        }
        Some(webpki::Error::UnsupportedCertVersion) => {
            "the server's certificate is X.509 version 1: make one of version 3".into()
        }
        _ => problem.to_string().into(),
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Malformed(error)
    }
}

impl From<h2::Error> for Failure {
    fn from(_: h2::Error) -> Self {
        Failure::Closed
    }
}

#[cfg(test)]
pub(super) mod tests {
    use svc_proto::contract::Reason;
    use tonic_types::ErrorDetails;

    use super::*;

    pub const HINT: Duration = Duration::from_secs(7);

    pub fn refused(reason: Reason, retry_after: Option<Duration>) -> Failure {
        let mut details = ErrorDetails::new();
        details.set_error_info(reason.as_str(), DOMAIN, []);
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        let status = Status::with_error_details(reason.code(), "refused", details);
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers).unwrap();
        Failure::from_trailers(&trailers)
    }

    #[test]
    fn a_refusal_carries_its_reason_and_its_hint() {
        let failure = refused(Reason::RateLimited, Some(HINT));
        assert_eq!(failure.label(), "RATE_LIMITED");
        assert_eq!(failure.retry_after(), Some(HINT));
        assert!(matches!(
            Failure::from_trailers(&HeaderMap::new()),
            Failure::Closed
        ));
    }
}
