//! What the agent keeps in mind: on disk, so that a restart goes on from there, and on
//! the board, so that a person can look.

use std::time::Duration;

use jiff::Timestamp;

use super::Agent;
use crate::{
    caller::Caller,
    record::Sampling,
    release::VERSION,
    state::State,
    status::{Connection, Enrolment, Status},
    wire::Credential,
};

/// What is known before the service has said anything.
pub(super) fn at_start(caller: &Caller, state: &State) -> Status {
    Status {
        version: VERSION.into(),
        fingerprint: caller.identity().fingerprint(),
        agent_id: state.agent_id.clone(),
        enrolment: match state.credential() {
            Some(_) => Enrolment::Active,
            None => Enrolment::Unknown,
        },
        jwt_expires_at: state.jwt_expires_at(),
        ..Status::default()
    }
}

impl Agent {
    /// The next call registers. Samples are taken on: it may well be admitted still.
    pub(super) fn forget_credential(&mut self) {
        self.state.forget_credential();
        self.keep_state();
    }

    /// The service knows nothing of this key: it is a new agent's, with a token.
    pub(super) fn forget_agent(&mut self) {
        self.state = State::default();
        self.keep_state();
    }

    /// A new JWT, from a registration or over the stream.
    pub(super) fn take_credential(&mut self, credential: &Credential) {
        self.state.set_credential(credential);
        let expires_at = self.state.jwt_expires_at();
        self.board
            .change(|status| status.jwt_expires_at = expires_at);
        self.keep_state();
    }

    pub(super) fn keep_time(&mut self) {
        self.state.set_time(&self.boot_id, self.record.anchor());
        self.keep_state();
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.sample(|sampling| sampling.interval = interval);
        let seconds = Some(interval.as_secs());
        self.board
            .change(|status| status.interval_seconds = seconds);
        let known = self.state.interval();
        self.state.set_interval(interval);
        if self.state.interval() != known {
            self.keep_state();
        }
    }

    pub(super) fn sample(&self, change: impl FnOnce(&mut Sampling)) {
        self.sampling.send_modify(change);
    }

    /// A full disk is no reason to stop: what was not kept is asked for again.
    fn keep_state(&self) {
        if let Err(error) = self.state.save(&self.dir) {
            tracing::warn!(%error, "the state could not be kept");
        }
    }

    pub(super) fn connected(&self) {
        let address = self.address();
        self.board.change(|status| {
            status.connection = Connection {
                connected: true,
                address: Some(address),
                since: Some(Timestamp::now()),
                error: None,
                next_attempt_at: None,
            };
        });
    }

    pub(super) fn disconnected(&self, error: String) {
        self.board.change(|status| {
            status.connection.connected = false;
            status.connection.since = None;
            status.connection.error = Some(error);
        });
    }

    pub(super) fn address(&self) -> String {
        let address = self.addresses.current();
        address.map(ToString::to_string).unwrap_or_default()
    }
}
