//! Moving to another instance after a Drain, or to another key.
//!
//! The service gives each drained agent a slot: the delay after which it reconnects.
//! The agent opens the new stream at its slot while it still serves the old one, and
//! leaves the old one when the new one is welcomed. So samples flow throughout, unless
//! the old instance stops first; the session then waits without a stream.
//!
//! The move is a future that owns everything it needs, so it runs inside the session's
//! `select!` without borrowing the session. From Welcome on, the service's epoch makes
//! the new stream the agent's only one: the service ends the old stream with
//! SESSION_REPLACED if the agent has not dropped it before. Reports that were in flight
//! on the old stream are sent again on the new one; the service stores each number once.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Moved, PendingMove, Session, SessionEnd};
use crate::agent::rounded;

/// The longest slot that an agent accepts.
const LONGEST_SLOT: Duration = Duration::from_hours(1);

impl Session<'_> {
    pub(super) fn drain(&mut self, slot: Duration) {
        let slot = slot.min(LONGEST_SLOT);
        tracing::info!(?slot, "the instance drains: connecting to another one");
        self.agent.caller.leave_peer();
        self.pending_move = self.move_at(Instant::now() + slot);
    }

    /// Connects with the new key, and leaves the stream of the old one then.
    pub(super) fn move_to_new_key(&mut self) {
        let interval = self.agent.sampling.borrow().interval;
        let within = self.agent.timing.new_key.min(interval);
        let wait = within.mul_f64(rand::random());
        self.pending_move = self.move_at(Instant::now() + wait);
    }

    fn move_at(&self, slot: Instant) -> Option<PendingMove> {
        let address = self.agent.addresses.other().clone();
        let credential = self.agent.state.credential()?;
        let caller = self.agent.caller.clone();
        let caller = caller.living_in(self.agent.cell_state());
        Some(Box::pin(async move {
            sleep_until(slot).await;
            caller.open(&address, &credential).await
        }))
    }

    /// Continues on the new stream. If it could not be opened, the agent tries the next
    /// address while the old stream lasts; without an old stream the session fails.
    pub(super) async fn moved(&mut self, moved: Moved) -> Result<(), SessionEnd> {
        self.pending_move = None;
        match moved {
            Ok((call, welcome)) => {
                self.agent.addresses.advance();
                self.call = Some(call);
                self.welcomed(welcome).await
            }
            Err(error) if self.call.is_none() => {
                self.agent.addresses.advance();
                Err(SessionEnd::Failed(error))
            }
            // The service does not know the new key: this stream, of the present one, goes on.
            Err(error) if self.agent.falls_back(&error) => Ok(()),
            Err(error) => {
                self.agent.leave_address();
                let wait = self.agent.backoff_wait(error.retry_after());
                tracing::warn!(%error, retry_in = ?rounded(wait), "could not connect to another instance yet");
                self.pending_move = self.move_at(Instant::now() + wait);
                Ok(())
            }
        }
    }
}
