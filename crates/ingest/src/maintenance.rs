//! What must be done now and then, by whichever instance gets to it: rollups, the
//! days' partitions made ahead and dropped when they are too old, and events and gaps
//! that have been kept for long enough removed.
//!
//! Each step is safe on several instances at once and bounded; one that fails is
//! logged, holds up no other, and is done by the next pass.

mod rollups;

use std::{fmt::Display, time::Duration};

use svc_store::{DatabaseUrl, Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::config::Retention;
pub use rollups::Rollups;

const EVERY: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub struct Maintenance {
    pub store: Store,
    /// Straight to the server: partitions are not dropped through a pooler.
    pub direct: DatabaseUrl,
    pub retention: Retention,
}

impl Maintenance {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if stop.run_until_cancelled(self.pass()).await.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Dropping comes first: it frees what an unfinished detach holds, for a day that
    /// is to be kept after all to be attached again.
    async fn pass(&self) {
        let Retention {
            metrics,
            rollups,
            events,
        } = self.retention;
        let dropped = self
            .store
            .partitions_drop(&self.direct, metrics, rollups)
            .await;
        said("dropped partitions", dropped.map(|names| names.join(" ")));
        said(
            "made partitions",
            self.store.samples_prepare(metrics).await.map(some),
        );
        said(
            "removed gaps",
            self.store.gaps_prune(metrics).await.map(some),
        );
        said(
            "removed events",
            self.store.events_prune(events).await.map(some),
        );
    }
}

/// A number as text; none as nothing.
fn some(number: impl Display + PartialEq + Default) -> String {
    if number == Default::default() {
        return String::new();
    }
    number.to_string()
}

/// Logs what a step did, where it did something.
fn said(step: &'static str, outcome: Result<String, StoreError>) {
    match outcome {
        Ok(done) if done.is_empty() => {}
        Ok(done) => tracing::info!(step, done, "maintenance"),
        Err(error) => {
            let reason = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(
                step,
                reason,
                "maintenance could not be done: the next pass will"
            );
        }
    }
}
