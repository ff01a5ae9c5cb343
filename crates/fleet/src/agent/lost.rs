//! Why a stream, or the attempt at one, is over, and what an agent does about it.

use std::{borrow::Cow, io, time::Duration};

use http::HeaderMap;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::wire::WireError;

#[derive(Debug)]
pub enum Lost {
    /// No TCP connection.
    Unreachable(io::ErrorKind),
    /// No TLS connection.
    Handshake,
    /// The connection ended without a word.
    Closed,
    /// The service did not answer in time.
    Slow,
    /// The service answers nothing any more, not even a ping.
    Silent,
    /// The stream ended with a status.
    Refused(Refusal),
    /// The service said what the contract does not know.
    Nonsense(WireError),
    /// The registration waits for a person, or was decided against.
    NotAdmitted,
    /// This process has no key for the agent.
    NoIdentity,
}

#[derive(Debug)]
pub struct Refusal {
    code: Code,
    reason: String,
    retry: Option<Duration>,
}

impl Lost {
    /// From the last headers of an answer. OK without a Goodbye of ours is an end like any other.
    pub fn of(trailers: &HeaderMap) -> Lost {
        let Some(status) = Status::from_header_map(trailers) else {
            return Lost::Closed;
        };
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| info.reason.clone());
        Lost::Refused(Refusal {
            code: status.code(),
            reason: reason.unwrap_or_else(|| format!("{:?}", status.code())),
            retry: details.retry_info().and_then(|retry| retry.retry_delay),
        })
    }

    /// What it is counted as.
    pub fn reason(&self) -> Cow<'_, str> {
        match self {
            Lost::Unreachable(kind) => format!("unreachable: {kind}").into(),
            Lost::Handshake => "handshake failed".into(),
            Lost::Closed => "connection closed".into(),
            Lost::Slow => "no answer in time".into(),
            Lost::Silent => "silent".into(),
            Lost::Refused(refusal) => refusal.reason.as_str().into(),
            Lost::Nonsense(error) => error.to_string().into(),
            Lost::NotAdmitted => "not admitted".into(),
            Lost::NoIdentity => "no identity".into(),
        }
    }

    /// When the service asks to be tried again.
    pub fn hint(&self) -> Option<Duration> {
        match self {
            Lost::Refused(refusal) => refusal.retry,
            _ => None,
        }
    }

    /// Whether a new JWT may mend it.
    pub fn wants_registration(&self) -> bool {
        matches!(self, Lost::Refused(refusal) if refusal.code == Code::Unauthenticated)
    }

    pub fn is(&self, reason: &str) -> bool {
        matches!(self, Lost::Refused(refusal) if refusal.reason == reason)
    }
}

impl From<WireError> for Lost {
    fn from(error: WireError) -> Self {
        Lost::Nonsense(error)
    }
}

impl From<h2::Error> for Lost {
    fn from(_: h2::Error) -> Self {
        Lost::Closed
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_reason_and_heeded_by_its_hint() {
        let mut details = ErrorDetails::new();
        details.set_error_info("RATE_LIMITED", "svc-ingest", []);
        details.set_retry_info(Some(Duration::from_secs(7)));
        let status = Status::with_error_details(Code::ResourceExhausted, "slowly", details);
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers).unwrap();
        let lost = Lost::of(&trailers);
        assert!(lost.is("RATE_LIMITED") && !lost.wants_registration());
        assert_eq!(lost.hint(), Some(Duration::from_secs(7)));
        assert!(matches!(Lost::of(&HeaderMap::new()), Lost::Closed));
    }
}
