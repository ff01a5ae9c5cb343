//! Compaction, every few minutes: arrival hours that are over are sealed, then compacted into chunks and rollups
//! in steps that are short enough for a stop in between, and then dropped.
//!
//! One host must not stop all others. A step that takes too long, or that the database refuses for its data, is
//! repeated with half as many rows, down to one host. A host that fails alone is set aside: its rows move to the
//! running hour, and are tried again with it. A fault of the database itself ends the pass.

use std::time::Duration;

use svc_store::{COMPACTION_STEP, CompactionStep, DatabaseUrl, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{error_chain::chain, periodic::Periodic, telemetry::PipelineMetrics};

/// How many hosts one pass sets aside. If so many fail, the fault is hardly theirs, and the next pass is soon
/// enough.
const MOST_ALONE: usize = 20;

/// How many hours of the previous version one step rolls up.
const LEFT_OVER_STEP: i64 = 500;

#[derive(Debug)]
pub struct Compaction {
    pub store: Store,
    /// Connects as the owner of the tables, who makes and drops partitions.
    pub owner: Store,
    /// A direct connection of the owner: partitions cannot be dropped through a pooler.
    pub direct: DatabaseUrl,
    pub pipeline: PipelineMetrics,
    pub period: Duration,
}

impl Compaction {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Err(error) = self.pass(&stop).await {
                let reason = chain(&error);
                tracing::warn!(
                    reason,
                    "closed hours could not be compacted: the next pass retries"
                );
            }
        }
        Ok(())
    }

    /// Several instances may take steps of the same pass; each step is one transaction.
    async fn pass(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let began = Instant::now();
        self.owner.hours_create().await?;
        self.store.hours_seal().await?;
        let samples = self.compact(stop).await?;
        self.left_over(stop).await?;
        let dropped = self.owner.hours_drop(&self.direct).await?;
        self.observe().await?;
        if samples > 0 || !dropped.is_empty() {
            tracing::info!(samples, ?dropped, took = ?began.elapsed(), "compacted");
        }
        Ok(())
    }

    /// Returns how many samples were compacted.
    async fn compact(&self, stop: &CancellationToken) -> Result<i64, StoreError> {
        let mut size = StepSize::new(COMPACTION_STEP);
        let (mut samples, mut aside) = (0, 0);
        while !stop.is_cancelled() && aside < MOST_ALONE {
            if size.is_one() {
                aside += usize::from(!self.compact_alone().await?);
                size.grow();
                continue;
            }
            let step = self.store.compaction_step(size.rows).await;
            if let Some(step) = size.judge(step)? {
                samples += step.samples;
                self.count(&step);
                if !step.more {
                    break;
                }
            }
        }
        Ok(samples)
    }

    /// Compacts one host, or sets it aside. Returns whether it was compacted.
    async fn compact_alone(&self) -> Result<bool, StoreError> {
        let next = self.store.compaction_next().await?;
        match (self.store.compaction_step(1).await, next) {
            (Err(error), Some(host)) if fewer_may_succeed(&error) => {
                let (hour, id, reason) = (host.hour, host.host_id, chain(&error));
                tracing::warn!(%hour, host.id = %id, reason, "a host's samples could not be compacted: they are set aside");
                self.store.compaction_set_aside(host, &reason).await?;
                Ok(false)
            }
            (outcome, _) => {
                self.count(&outcome?);
                Ok(true)
            }
        }
    }

    /// Rolls up the hours that the previous version left.
    async fn left_over(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut size = StepSize::new(LEFT_OVER_STEP);
        let mut aside = 0;
        while !stop.is_cancelled() && aside < MOST_ALONE {
            let step = self.store.rollups_left_over(size.rows).await;
            match step {
                Err(error) if size.is_one() && fewer_may_succeed(&error) => {
                    let reason = chain(&error);
                    tracing::warn!(
                        reason,
                        "an hour of the previous version could not be rolled up"
                    );
                    self.store.rollups_left_over_drop(&reason).await?;
                    aside += 1;
                    size.grow();
                }
                step => match size.judge(step)? {
                    Some(step) if !step.more => break,
                    _ => {}
                },
            }
        }
        Ok(())
    }

    async fn observe(&self) -> Result<(), StoreError> {
        let state = self.store.history_state().await?;
        let pipeline = &self.pipeline;
        pipeline.rollups_set_aside.set(state.rollups_set_aside);
        pipeline
            .compaction_lag_seconds
            .set(state.compaction_lag_seconds);
        Ok(())
    }

    fn count(&self, step: &CompactionStep) {
        let samples = u64::try_from(step.samples).unwrap_or(0);
        self.pipeline.samples_compacted.inc_by(samples);
    }
}

/// How much a step takes. It is halved after a failure and grows by a quarter after a success, so that it
/// closes in on a host that fails, and recovers when the database was only slow for a while.
struct StepSize {
    rows: i64,
    most: i64,
}

impl StepSize {
    fn new(most: i64) -> Self {
        Self { rows: most, most }
    }

    fn is_one(&self) -> bool {
        self.rows == 1
    }

    fn grow(&mut self) {
        self.rows = (self.rows + self.rows / 4 + 1).min(self.most);
    }

    /// The step, or `None` if it failed and should be repeated with the smaller size.
    fn judge(
        &mut self,
        step: Result<CompactionStep, StoreError>,
    ) -> Result<Option<CompactionStep>, StoreError> {
        match step {
            Ok(step) => {
                self.grow();
                Ok(Some(step))
            }
            Err(error) if fewer_may_succeed(&error) && !self.is_one() => {
                self.rows /= 2;
                let (rows, reason) = (self.rows, chain(&error));
                tracing::warn!(
                    rows,
                    reason,
                    "a compaction step failed: the next is smaller"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn fewer_may_succeed(error: &StoreError) -> bool {
    error.is_timeout() || error.is_data_error()
}
