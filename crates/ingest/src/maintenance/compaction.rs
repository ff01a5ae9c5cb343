//! Compaction, every few minutes: arrival hours that are over are sealed, then compacted into chunks and rollups
//! in steps that are short enough for a stop in between, and dropped by a later pass.
//!
//! One host must not stop all others. A step that fails is repeated with an eighth of its rows, down to one host. A host that
//! fails alone is set aside, and tried again by every pass. A fault that fewer rows cannot avoid ends the stage.

use std::time::Duration;

use svc_pipeline::metrics::PipelineMetrics;
use svc_store::{COMPACTION_STEP, CompactionStep, DatabaseUrl, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{log, shown};
use crate::{error_chain::chain, periodic::Periodic};

/// How many hosts one pass sets aside. If so many fail, the fault is hardly theirs, and the next pass is soon
/// enough.
const MOST_ALONE: usize = 20;

/// How long one pass tries hosts that were set aside: each may take as long as a step may.
const RETRIES: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct Compaction {
    pub store: Store,
    /// Connects as the owner of the tables, who makes and drops partitions.
    pub owner: Store,
    /// A direct connection of the owner, where there is one: it drops partitions without making anybody wait.
    pub direct: DatabaseUrl,
    /// How long samples are kept.
    pub retention: Duration,
    pub pipeline: PipelineMetrics,
    pub period: Duration,
}

impl Compaction {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            self.pass(&stop).await;
        }
        Ok(())
    }

    /// Each stage runs whether or not the others fail. Several instances may take steps of the same pass; each step is
    /// one transaction. Dropping comes before compacting, so that an hour outlives the pass that finished it. Days come
    /// first, because compaction writes to them.
    async fn pass(&self, stop: &CancellationToken) {
        let (store, owner) = (&self.store, &self.owner);
        let made = owner.partitions_create(self.retention).await;
        log("made partitions", made.map(shown));
        log("made hours", owner.hours_create().await.map(shown));
        log("sealed hours", store.hours_seal().await.map(shown));
        let dropped = owner.hours_drop(&self.direct).await;
        log("dropped hours", dropped.map(|names| names.join(" ")));
        log("compacted samples", self.compact(stop).await.map(shown));
        let retried = self.retry(stop).await;
        log("compacted samples that were set aside", retried.map(shown));
    }

    /// Returns how many samples were compacted.
    async fn compact(&self, stop: &CancellationToken) -> Result<i64, StoreError> {
        let mut size = StepSize(COMPACTION_STEP);
        let (mut samples, mut aside) = (0, 0);
        while !stop.is_cancelled() && aside < MOST_ALONE {
            let step = match size {
                StepSize(1) => self.compact_alone().await?,
                StepSize(rows) => match self.store.compaction_step(rows).await {
                    Err(error) if error.fewer_may_succeed() => {
                        size.shrink(&error);
                        continue;
                    }
                    step => Some(step?),
                },
            };
            size.grow();
            match step {
                Some(step) => samples += self.count(step),
                None => aside += 1,
            }
            if step.is_some_and(|step| !step.more) {
                break;
            }
        }
        Ok(samples)
    }

    /// Compacts one host, or sets it aside and returns `None`.
    async fn compact_alone(&self) -> Result<Option<CompactionStep>, StoreError> {
        let next = self.store.compaction_next().await?;
        match (self.store.compaction_step(1).await, next) {
            (Err(error), Some(host)) if error.fewer_may_succeed() => {
                let (hour, host_no, reason) = (host.hour, host.host_no, chain(&error));
                tracing::warn!(%hour, host_no, reason, "a host's samples could not be compacted: they are set aside");
                self.store.compaction_set_aside(host, &reason).await?;
                Ok(None)
            }
            (step, _) => step.map(Some),
        }
    }

    /// Returns how many samples of hosts that were set aside were compacted.
    async fn retry(&self, stop: &CancellationToken) -> Result<i64, StoreError> {
        let (began, mut samples) = (Instant::now(), 0);
        for host in self.store.hosts_set_aside().await? {
            if stop.is_cancelled() || began.elapsed() > RETRIES {
                break;
            }
            match self.store.compaction_retry(host).await {
                Err(error) if error.fewer_may_succeed() => {
                    let reason = chain(&error);
                    self.store.compaction_set_aside(host, &reason).await?;
                }
                step => samples += self.count(step?),
            }
        }
        Ok(samples)
    }

    fn count(&self, step: CompactionStep) -> i64 {
        let samples = u64::try_from(step.samples).unwrap_or(0);
        self.pipeline.samples_compacted.inc_by(samples);
        step.samples
    }
}

/// How many rows a step takes. An eighth after a failure and twice as many after a success, so that it closes in on a host
/// that fails, and recovers when the database was only slow for a while.
struct StepSize(i64);

impl StepSize {
    fn grow(&mut self) {
        self.0 = (2 * self.0).min(COMPACTION_STEP);
    }

    fn shrink(&mut self, error: &StoreError) {
        self.0 = (self.0 / 8).max(1);
        let (rows, reason) = (self.0, chain(error));
        tracing::warn!(
            rows,
            reason,
            "a compaction step failed: the next is smaller"
        );
    }
}
