//! A Drain honoured: the new stream is opened at its slot, beside the old one, and
//! the old one is left when the new one is welcomed.

use std::{future::Future, pin::Pin, time::Duration};

use svc_proto::v1::Welcome;
use tokio::time::{Instant, sleep_until};

use super::{Over, Session};
use crate::{caller::CallError, wire::Stream};

/// No slot is later than this, whatever is said.
const LONGEST: Duration = Duration::from_hours(1);

/// A stream on its way.
pub(super) type Move = Pin<Box<dyn Future<Output = Moved> + Send>>;
type Moved = Result<(Stream, Welcome), CallError>;

/// The end of a move, if one is under way.
pub(super) async fn arrival(moving: &mut Option<Move>) -> Moved {
    match moving {
        Some(moving) => moving.await,
        None => std::future::pending().await,
    }
}

impl Session<'_> {
    /// Asked to come back elsewhere, after a slot of its own.
    pub(super) fn drain(&mut self, slot: Duration) {
        let slot = slot.min(LONGEST);
        tracing::info!(?slot, "asked to connect elsewhere");
        self.moving = self.move_at(Instant::now() + slot);
    }

    fn move_at(&self, slot: Instant) -> Option<Move> {
        let address = self.agent.addresses.other()?.clone();
        let credential = self.agent.state.credential()?;
        let caller = self.agent.caller.clone();
        Some(Box::pin(async move {
            sleep_until(slot).await;
            caller.open(&address, &credential).await
        }))
    }

    /// On with the new stream; where it failed, the old one carries on while it can.
    pub(super) fn moved(&mut self, moved: Moved) -> Result<(), Over> {
        self.moving = None;
        self.agent.addresses.advance();
        match moved {
            Ok((stream, welcome)) => {
                self.stream = Some(stream);
                self.welcomed(welcome)
            }
            Err(error) if self.stream.is_none() => Err(Over::Failed(error)),
            Err(error) => {
                let wait = self.agent.backoff.next(error.retry_after());
                tracing::warn!(%error, retry_in = ?super::super::rounded(wait), "could not connect elsewhere yet");
                self.moving = self.move_at(Instant::now() + wait);
                Ok(())
            }
        }
    }
}
