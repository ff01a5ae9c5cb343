//! How the service says no: a gRPC status with the reason of the wire contract
//! and, where waiting helps, a hint when to come back.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The `domain` of every `google.rpc.ErrorInfo`.
const DOMAIN: &str = "svc-ingest";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client's key has as many connections as one key may have.
    TooManyConnections,
    /// Others hold all the places for streams of this kind.
    Overloaded,
}

impl Refusal {
    pub fn into_status(self) -> Status {
        let (code, reason, message, retry) = self.parts();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, []);
        if let Some(after) = retry {
            details.set_retry_info(Some(after));
        }
        Status::with_error_details(code, message, details)
    }

    fn parts(&self) -> (Code, &'static str, &'static str, Option<Duration>) {
        match self {
            Self::TooManyConnections => (
                Code::ResourceExhausted,
                "TOO_MANY_CONNECTIONS",
                "this client key has too many connections open: close one, or wait",
                Some(Duration::from_secs(30)),
            ),
            Self::Overloaded => (
                Code::Unavailable,
                "OVERLOADED",
                "no place is free for another stream of this kind: try again later",
                Some(Duration::from_secs(10)),
            ),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        refusal.into_status()
    }
}
