//! Commit hints: over NATS, consumers in other processes tell this instance what they have committed.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SessionTable;
use crate::{
    periodic::sleep,
    queue::{HintSubscription, Hints},
};

const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct HintListener {
    pub hints: Hints,
    pub sessions: Arc<SessionTable>,
    /// Hints are addressed to the instance's current id.
    pub instance: watch::Receiver<Uuid>,
}

impl HintListener {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            let instance = *self.instance.borrow_and_update();
            match self.hints.subscribe(instance).await {
                Ok(subscription) => {
                    stop.run_until_cancelled(self.receive(subscription)).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot subscribe to commit hints: retrying");
                    sleep(RETRY, &stop).await;
                }
            }
        }
        Ok(())
    }

    /// Returns when the instance has taken another id.
    async fn receive(&mut self, mut subscription: HintSubscription) {
        loop {
            tokio::select! {
                committed = subscription.next() => self.sessions.committed(&committed),
                changed = self.instance.changed() => match changed {
                    Ok(()) => return,
                    // The lease has ended because the process stops: `run` is cancelled next.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }
}
