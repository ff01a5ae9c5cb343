//! Rollups, every few minutes: the hours that changed are gathered, then computed, in steps that are short
//! enough for a stop in between.

use std::time::Duration;

use svc_store::{Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{error_chain::chain, periodic::Periodic};

#[derive(Debug)]
pub struct Rollups {
    pub store: Store,
    pub period: Duration,
}

impl Rollups {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Err(error) = self.pass(&stop).await {
                let reason = chain(&error);
                tracing::warn!(
                    reason,
                    "rollups could not be computed: the next pass retries"
                );
            }
        }
        Ok(())
    }

    /// Several instances may take steps of the same pass; each step is one transaction.
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
