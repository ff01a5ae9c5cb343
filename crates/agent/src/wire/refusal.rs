//! What the service's refusals mean for an agent: the wire contract's table, read
//! from the other side.

use std::{error::Error, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The JWT is not taken: register over the same key.
    Jwt,
    /// The agent is not active: registering says where it stands.
    NotActive,
    /// The agent is not known any more: register as a new one.
    Deleted,
    /// The enrolment token admits nobody: a person must make a new one.
    Token,
    /// The same key is live on another machine: this one is a copy.
    IdentityInUse,
    /// A newer stream of this agent took over.
    Replaced,
    /// The other side asks to come back later.
    Later,
    /// What was said was not understood: one of the two has a defect.
    Misunderstood,
    /// The connection was lost, or the service has a fault.
    Lost,
}

/// No hint keeps an agent away for longer.
const LONGEST_HINT: Duration = Duration::from_hours(24);

/// How a call, or a stream, ended.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub reason: Reason,
    /// The contract's name for it, where the service gave one.
    pub name: String,
    pub message: String,
    /// When to come back, by the service.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub fn lost(message: impl Into<String>) -> Self {
        Self {
            reason: Reason::Lost,
            name: String::new(),
            message: message.into(),
            retry_after: None,
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let info = info.filter(|info| info.domain == "svc-ingest");
        let name = info.map(|info| info.reason.clone()).unwrap_or_default();
        let retry = details.retry_info().and_then(|retry| retry.retry_delay);
        Self {
            reason: reason(status.code(), &name),
            message: message(&status, &name),
            name,
            retry_after: retry.map(|retry| retry.min(LONGEST_HINT)),
        }
    }
}

fn reason(code: Code, name: &str) -> Reason {
    match (code, name) {
        (_, "JWT_MISSING" | "JWT_INVALID" | "JWT_EXPIRED" | "KEY_MISMATCH") => Reason::Jwt,
        (_, "AGENT_PENDING" | "AGENT_REJECTED" | "AGENT_REVOKED") => Reason::NotActive,
        (
            _,
            "MALFORMED_TOKEN" | "TOKEN_UNKNOWN" | "TOKEN_EXPIRED" | "TOKEN_EXHAUSTED"
            | "TOKEN_REVOKED",
        ) => Reason::Token,
        (_, "IDENTITY_IN_USE") => Reason::IdentityInUse,
        (_, "SESSION_REPLACED") => Reason::Replaced,
        (Code::NotFound, _) => Reason::Deleted,
        (Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented, _) => {
            Reason::Misunderstood
        }
        (Code::ResourceExhausted | Code::Unavailable, name) if !name.is_empty() => Reason::Later,
        _ => Reason::Lost,
    }
}

/// With TLS 1.3 the service's verdict on our certificate comes after the handshake, as an
/// alert that HTTP/2 passes on as text.
const ALERT: &str = "received fatal alert: ";
const CERTIFICATE_REFUSED: &str = "the service does not take this agent's certificate: it may ask for one of your own PKI (client_cert_file, client_key_file)";

/// The service's own words, or the innermost cause of a connection's end.
fn message(status: &Status, name: &str) -> String {
    if !name.is_empty() {
        return status.message().to_owned();
    }
    let causes = std::iter::successors(status.source(), |cause| Error::source(*cause));
    let innermost = causes.last().map(ToString::to_string);
    let text = innermost.unwrap_or_else(|| status.message().to_owned());
    match text.strip_prefix(ALERT) {
        Some(alert) => format!("{CERTIFICATE_REFUSED}; TLS alert {alert}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    fn refused(code: Code, name: &str, retry: Option<Duration>) -> Refusal {
        let mut details = ErrorDetails::new();
        details.set_error_info(name, "svc-ingest", []);
        details.set_retry_info(retry);
        Status::with_error_details(code, "told so", details).into()
    }

    #[test]
    fn the_contracts_reasons_are_known() {
        for (code, name, reason) in [
            (Code::Unauthenticated, "JWT_EXPIRED", Reason::Jwt),
            (Code::Unauthenticated, "KEY_MISMATCH", Reason::Jwt),
            (Code::Unauthenticated, "TOKEN_EXHAUSTED", Reason::Token),
            (Code::InvalidArgument, "MALFORMED_TOKEN", Reason::Token),
            (
                Code::InvalidArgument,
                "PROTOCOL_VIOLATION",
                Reason::Misunderstood,
            ),
            (Code::PermissionDenied, "AGENT_REVOKED", Reason::NotActive),
            (
                Code::AlreadyExists,
                "IDENTITY_IN_USE",
                Reason::IdentityInUse,
            ),
            (Code::Aborted, "SESSION_REPLACED", Reason::Replaced),
            (Code::ResourceExhausted, "RATE_LIMITED", Reason::Later),
            (Code::Unavailable, "DATABASE_UNAVAILABLE", Reason::Later),
            (Code::DeadlineExceeded, "SILENT", Reason::Lost),
            (Code::Internal, "", Reason::Lost),
        ] {
            assert_eq!(refused(code, name, None).reason, reason, "{name}");
        }
        let deleted = Refusal::from(Status::not_found("this agent was deleted"));
        assert_eq!(deleted.reason, Reason::Deleted);
    }

    #[test]
    fn hints_are_taken_and_a_lost_connection_is_no_refusal() {
        let hint = Duration::from_secs(7);
        let later = refused(Code::Unavailable, "OVERLOADED", Some(hint));
        assert_eq!(later.retry_after, Some(hint));
        let lost = Refusal::from(Status::unavailable("connection reset"));
        assert_eq!((lost.reason, lost.retry_after), (Reason::Lost, None));
    }
}
