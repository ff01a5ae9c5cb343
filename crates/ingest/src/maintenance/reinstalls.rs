//! Reinstalled agents: a registration that its token admits by itself once the host's previous agent has
//! been offline for long enough.

use std::{sync::Arc, time::Duration};

use svc_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{changes::ChangeFeed, periodic::Periodic};

#[derive(Debug)]
pub struct Reinstalls {
    pub store: Store,
    pub changes: Arc<ChangeFeed>,
    pub period: Duration,
    /// How long the previous agent must have been offline.
    pub quiet: Duration,
}

impl Reinstalls {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop);
        while periodic.tick().await {
            if let Err(error) = self.pass().await {
                tracing::warn!(%error, "reinstalled agents could not be admitted: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&self) -> Result<(), StoreError> {
        for agent in self.store.reinstalls_admit(self.quiet).await? {
            tracing::info!(agent.id = %agent, "a reinstalled agent was admitted: the old agent stayed offline");
            self.changes.notice(agent);
        }
        Ok(())
    }
}
