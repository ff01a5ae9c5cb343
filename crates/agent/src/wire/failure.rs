//! How a call to the service failed, and what the wire contract asks the agent to do
//! about it.

use std::{error::Error, time::Duration};

use svc_proto::contract::{Action, DOMAIN, LONGEST_HINT, Reason};
use tonic::Status;
use tonic_types::StatusExt;

/// The end of a call or of a heartbeat stream: a refusal by the service, or a lost
/// connection.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CallFailure {
    pub action: Action,
    /// The reason as the service named it; empty without one. It is kept as text because
    /// a newer service may send a reason that this agent does not know.
    pub reason: String,
    pub message: String,
    /// The service's hint when to retry.
    pub retry_after: Option<Duration>,
}

impl CallFailure {
    /// A failure that the service did not explain.
    pub fn lost(message: impl Into<String>) -> Self {
        Self {
            action: Action::Reconnect,
            reason: String::new(),
            message: message.into(),
            retry_after: None,
        }
    }

    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason.as_str()
    }
}

impl From<Status> for CallFailure {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN);
        let reason = info.map(|info| info.reason.clone()).unwrap_or_default();
        let retry = details.retry_info().and_then(|retry| retry.retry_delay);
        Self {
            action: Action::for_status(status.code(), &reason),
            message: message(&status, &reason),
            reason,
            retry_after: retry.map(|retry| retry.min(LONGEST_HINT)),
        }
    }
}

/// With TLS 1.3 the server verifies the client certificate after the handshake. Its
/// verdict then arrives as a TLS alert, which HTTP/2 passes on as text.
const ALERT: &str = "received fatal alert: ";
const CERTIFICATE_REFUSED: &str = "the service does not accept this agent's certificate: it may require one of your own PKI (client_cert_file, client_key_file)";

/// The service's message, or the innermost cause of a lost connection.
fn message(status: &Status, reason: &str) -> String {
    if !reason.is_empty() {
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
    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    fn refused(reason: Reason, retry: Option<Duration>) -> CallFailure {
        let mut details = ErrorDetails::new();
        details.set_error_info(reason.as_str(), DOMAIN, []);
        details.set_retry_info(retry);
        Status::with_error_details(reason.code(), "refused", details).into()
    }

    #[test]
    fn every_reason_of_the_contract_leads_to_its_action() {
        for reason in Reason::ALL {
            let failure = refused(*reason, None);
            assert!(failure.is(*reason));
            assert_eq!(failure.action, reason.action(), "{reason:?}");
        }
        let deleted = CallFailure::from(Status::not_found("this agent was deleted"));
        assert_eq!(deleted.action, Action::RegisterAsNew);
    }

    #[test]
    fn a_reason_of_another_domain_is_ignored() {
        let mut details = ErrorDetails::new();
        details.set_error_info("JWT_EXPIRED", "a.proxy.example", []);
        let status = Status::with_error_details(Code::Unavailable, "busy", details);
        assert_eq!(CallFailure::from(status).action, Action::Reconnect);
    }

    #[test]
    fn hints_are_kept_and_capped() {
        for (hint, kept) in [(7, 7), (1_000_000, LONGEST_HINT.as_secs())] {
            let later = refused(Reason::Overloaded, Some(Duration::from_secs(hint)));
            assert_eq!(later.retry_after, Some(Duration::from_secs(kept)));
        }
        let lost = CallFailure::from(Status::unavailable("connection reset"));
        assert_eq!((lost.action, lost.retry_after), (Action::Reconnect, None));
    }
}
