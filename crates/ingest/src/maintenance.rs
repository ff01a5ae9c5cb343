//! Maintenance, by whichever instance gets to it: partitions made ahead and dropped after the retention,
//! old events, gaps and shapes removed, closed hours compacted, reinstalled agents admitted, hosts expired, rollouts of
//! agents' releases judged, the gauges of the fleet read, and its pictures counted.
//!
//! Each step is bounded and safe on several instances at once. A step that fails is logged, does not
//! delay the others, and is retried by the next pass.

mod compaction;
mod expiry;
mod fleet_gauges;
mod fleet_pictures;
mod reinstalls;
mod rollouts;

use std::{fmt::Display, time::Duration};

use svc_store::{DatabaseUrl, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{config::Retention, error_chain::chain, periodic::Periodic};
pub use compaction::Compaction;
pub use expiry::HostExpiry;
pub use fleet_gauges::FleetReport;
pub use fleet_pictures::FleetPictures;
pub use reinstalls::Reinstalls;
pub use rollouts::Rollouts;

const PERIOD: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub struct Maintenance {
    pub store: Store,
    /// Connects as the owner of the tables, who makes and drops partitions.
    pub owner: Store,
    /// A direct connection of the owner, where there is one: it drops partitions without making anybody wait.
    pub direct: DatabaseUrl,
    pub retention: Retention,
}

impl Maintenance {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(PERIOD, stop);
        while periodic.tick().await {
            periodic.until_stopped(self.pass()).await;
        }
        Ok(())
    }

    /// Dropping comes first: it completes an unfinished detach, so that a day that is to be kept after all
    /// can be attached again.
    async fn pass(&self) {
        let Retention {
            metrics,
            rollups,
            events,
            ..
        } = self.retention;
        let (store, owner) = (&self.store, &self.owner);
        let dropped = owner.partitions_drop(&self.direct, metrics, rollups).await;
        log("dropped partitions", dropped.map(|names| names.join(" ")));
        let made = owner.partitions_create(metrics).await;
        log("made partitions", made.map(shown));
        let removed = store.shapes_prune(metrics, rollups).await;
        log("removed shapes", removed.map(shown));
        let removed = store.agent_counts_prune().await;
        log("removed counts of agents", removed.map(shown));
        let removed = store.hours_prune().await;
        log("removed entries of hours", removed.map(shown));
        let removed = store.gaps_prune(metrics).await;
        log("removed gaps", removed.map(shown));
        let removed = store.events_prune(events).await;
        log("removed events", removed.map(shown));
    }
}

/// A number as text; zero as no text.
fn shown(number: impl Display + PartialEq + Default) -> String {
    if number == Default::default() {
        return String::new();
    }
    number.to_string()
}

/// Logs what a step did, if it did something.
fn log(step: &'static str, outcome: Result<String, StoreError>) {
    match outcome {
        Ok(done) if done.is_empty() => {}
        Ok(done) => tracing::info!(step, done, "maintenance"),
        Err(error) => {
            let reason = chain(&error);
            tracing::warn!(step, reason, "maintenance failed: the next pass retries");
        }
    }
}
