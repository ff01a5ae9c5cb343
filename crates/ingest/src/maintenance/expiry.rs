//! Hosts that have been offline for long are retired, where a setting asks for it: machines that an
//! autoscaler removed would otherwise stay in the lists forever.
//!
//! **Danger.** While no instance runs, no agent can report, and all of them have been offline since the
//! last stop. Retiring a host ends its agent for good. So an instance expires nothing before it has run
//! for a whole period, in which every agent that can has come back.

use std::time::Duration;

use svc_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::periodic::Periodic;

const ACTOR: &str = "svc-ingest";

#[derive(Debug)]
pub struct HostExpiry {
    pub store: Store,
    pub offline_for: Duration,
    pub period: Duration,
}

impl HostExpiry {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop);
        periodic.tick_after(self.period);
        while periodic.tick().await {
            if let Err(error) = self.pass().await {
                tracing::warn!(%error, "hosts could not be expired: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&self) -> Result<(), StoreError> {
        let retired = self.store.hosts_expire(self.offline_for, ACTOR).await?;
        if retired > 0 {
            tracing::info!(retired, "hosts that were offline for long were retired");
        }
        Ok(())
    }
}
