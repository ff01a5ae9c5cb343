//! Rollups, every few minutes: what changed is gathered, then computed, in steps that
//! are short enough for a stop to come in between.

use std::time::Duration;

use svc_store::{Store, StoreError};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct Rollups {
    pub store: Store,
    pub every: Duration,
}

impl Rollups {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.pass(&stop).await {
                let reason = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(reason, "rollups could not be computed: the next pass will");
            }
        }
        Ok(())
    }

    /// Several instances may take steps of one pass; each step is whole.
    async fn pass(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let began = Instant::now();
        let mut hours = 0;
        while !stop.is_cancelled() && self.store.rollups_gather().await?.more {}
        while !stop.is_cancelled() {
            let step = self.store.rollups_compute().await?;
            hours += step.taken;
            if !step.more {
                break;
            }
        }
        tracing::debug!(hours, took = ?began.elapsed(), "rolled up");
        Ok(())
    }
}
