//! What must be done now and then, by whichever instance gets to it: the days'
//! partitions made ahead, and events that have been kept for long enough removed.

use std::time::Duration;

use svc_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::config::Retention;

const EVERY: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub struct Maintenance {
    pub store: Store,
    pub retention: Retention,
}

impl Maintenance {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.pass().await {
                tracing::warn!(%error, "maintenance could not be done: the next pass will");
            }
        }
        Ok(())
    }

    async fn pass(&self) -> Result<(), StoreError> {
        self.store.samples_prepare(self.retention.metrics).await?;
        let removed = self.store.events_prune(self.retention.events).await?;
        if removed > 0 {
            tracing::info!(removed, "old events were removed");
        }
        Ok(())
    }
}
