//! Changes of the agent's state: written to disk, so that a restart continues from there,
//! and to the status board, which `svc-agent status` shows.

use std::time::Duration;

use jiff::Timestamp;

use super::Agent;
use crate::{data_dir::STATE, recorder::Sampling, status::Connection, wire::Credential};

impl Agent {
    /// The next call registers. Sampling continues, because the agent may still be admitted.
    pub(super) fn forget_credential(&mut self) {
        self.state.forget_credential();
        self.save_state();
    }

    /// The service does not know this key: the next call registers it with the token.
    pub(super) fn forget_agent(&mut self) {
        self.state = std::mem::take(&mut self.state).of_deleted_agent();
        self.save_state();
    }

    /// The service does not admit this key. A restart takes no samples either.
    pub(super) fn refused(&mut self) {
        self.state.set_refused();
        self.save_state();
    }

    /// A new JWT, from a registration or from the heartbeat stream.
    pub(super) fn take_credential(&mut self, credential: &Credential) {
        self.state.set_credential(credential);
        let expires_at = self.state.jwt_expires_at();
        self.board
            .change(|status| status.jwt_expires_at = expires_at);
        self.save_state();
    }

    /// Saves the service's time, for a restart within this boot.
    pub(super) fn save_time(&mut self) {
        self.state.set_time(&self.boot_id, self.recorder.anchor());
        self.save_state();
    }

    /// The interval for agents whose settings name none.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.sample_at_interval();
        let known = self.state.interval();
        self.state.set_interval(interval);
        if self.state.interval() != known {
            self.save_state();
        }
    }

    pub(super) fn sample_at_interval(&self) {
        let interval = self.settings.in_force().interval.unwrap_or(self.interval);
        self.sample(|sampling| sampling.interval = interval);
        let seconds = Some(interval.as_secs());
        self.board
            .change(|status| status.interval_seconds = seconds);
    }

    pub(super) fn sample(&self, change: impl FnOnce(&mut Sampling)) {
        self.sampling.send_modify(change);
    }

    /// A failure, such as a full disk, does not stop the agent: the service sends all of
    /// this again after a restart.
    pub(super) fn save_state(&self) {
        self.recorder.write_file(STATE, self.state.text(), true);
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
        self.addresses.current().to_string()
    }
}
