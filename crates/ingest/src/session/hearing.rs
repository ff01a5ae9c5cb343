//! Listens for what consumers elsewhere have committed, under the id that this
//! instance has at the moment.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Sessions;
use crate::queue::{Heard, Hints};

const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Hearing {
    pub hints: Hints,
    pub sessions: Arc<Sessions>,
    pub instance: watch::Receiver<Uuid>,
}

impl Hearing {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            let instance = *self.instance.borrow_and_update();
            match self.hints.listen(instance).await {
                Ok(heard) => {
                    stop.run_until_cancelled(self.hear(heard)).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot listen for hints: trying again");
                    stop.run_until_cancelled(tokio::time::sleep(RETRY)).await;
                }
            }
        }
        Ok(())
    }

    /// Until the instance has another id.
    async fn hear(&mut self, mut heard: Heard) {
        loop {
            tokio::select! {
                committed = heard.next() => self.sessions.committed(&committed),
                changed = self.instance.changed() => match changed {
                    Ok(()) => return,
                    Err(_) => std::future::pending().await, // The lease has ended: so will we.
                },
            }
        }
    }
}
