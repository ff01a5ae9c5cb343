//! What an agent does after a failure, and when it tries again.

use std::time::Duration;

use svc_proto::{
    contract::{Action, BackoffBounds, limits},
    v1::AgentStatus,
};
use tokio::time::Instant;

use super::{Agent, failure::Failure};

/// The real agent waits this long for a new enrolment token, unless the service gives a hint.
const TOKEN_REFUSED_WAIT: Duration = Duration::from_mins(10);

impl Agent {
    /// Counts the failure, acts on it as the contract requires, and returns the time of the next attempt.
    ///
    /// Two actions differ from the real agent's. A virtual agent has only the key that its seed gives
    /// it, so it never takes a successor key: it retries. And while a registration is pending it
    /// registers again after a backoff, instead of holding the call open.
    pub(super) fn retry_at(&mut self, failure: &Failure) -> Instant {
        self.disconnected_at.get_or_insert_with(Instant::now);
        self.shared
            .stats(|stats| stats.count_error(&failure.label()));
        let action = failure.action();
        match action {
            Action::RegisterAgain | Action::WaitForPerson | Action::RegisterAsNew => {
                self.bearer = None;
            }
            Action::Reconnect | Action::RetryLater => self.next_target += 1,
            Action::NewToken
            | Action::TakeSuccessor
            | Action::YieldToReplacement
            | Action::Defect => {}
        }
        Instant::now() + self.retry_wait(failure, action)
    }

    fn retry_wait(&mut self, failure: &Failure, action: Action) -> Duration {
        let hint = failure.retry_after();
        match (action, failure) {
            (Action::YieldToReplacement, _) => limits::REPLACED_WAIT,
            (Action::NewToken, _) => hint.unwrap_or(TOKEN_REFUSED_WAIT),
            (_, Failure::NotAdmitted(AgentStatus::Rejected | AgentStatus::Revoked)) => {
                limits::NOT_ADMITTED_WAIT
            }
            _ => {
                let bounds = BackoffBounds::STANDARD;
                self.backoff.next(bounds, hint, rand::random())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use svc_proto::contract::Reason;

    use super::{
        super::{
            failure::tests::{HINT, refused},
            tests::agent,
        },
        *,
    };

    #[test]
    fn an_agent_follows_the_contract_after_a_refusal() {
        let no_wait = Duration::ZERO;
        let (replaced, not_admitted) = (limits::REPLACED_WAIT, limits::NOT_ADMITTED_WAIT);
        let revoked = Failure::NotAdmitted(AgentStatus::Revoked);
        let expired_token = refused(Reason::TokenExpired, None);
        for (failure, keeps_jwt, same_target, at_least) in [
            (refused(Reason::JwtExpired, None), false, true, no_wait),
            (refused(Reason::Draining, Some(HINT)), true, false, HINT),
            (refused(Reason::SessionReplaced, None), true, true, replaced),
            (expired_token, true, true, TOKEN_REFUSED_WAIT),
            (revoked, false, true, not_admitted),
            (Failure::Closed, true, false, no_wait),
        ] {
            let mut agent = agent(Some(HeaderValue::from_static("Bearer kept")));
            let began = Instant::now();
            let at = agent.retry_at(&failure);
            let label = failure.label();
            assert_eq!(agent.bearer.is_some(), keeps_jwt, "{label}");
            assert_eq!(agent.next_target == 0, same_target, "{label}");
            assert!(at >= began + at_least, "{label}");
        }
    }
}
