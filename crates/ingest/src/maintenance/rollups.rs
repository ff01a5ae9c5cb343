//! Rollups, every few minutes: the hours that changed are gathered, then computed, in steps that are short
//! enough for a stop in between.
//!
//! One host must not stop the rollups of all others. A step that takes too long, or that the database refuses for
//! its data, is repeated with half as many hours. An hour that fails alone is set aside, and tried again alone after
//! a while. A fault of the database itself ends the pass.

use std::time::Duration;

use svc_store::{HostHour, ROLLUP_STEP, RollupStep, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{error_chain::chain, periodic::Periodic, telemetry::PipelineMetrics};

/// How many hours one pass sets aside, or tries again. If so many fail, the fault is hardly theirs, and the
/// next pass is soon enough.
const MOST_ALONE: usize = 20;

#[derive(Debug)]
pub struct Rollups {
    pub store: Store,
    pub pipeline: PipelineMetrics,
    pub period: Duration,
    /// How long an hour that was set aside is left alone.
    pub retry: Duration,
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
        self.gather(stop).await?;
        let hours = self.compute(stop).await?;
        self.try_again(stop).await?;
        let aside = self.store.rollups_set_aside_count().await?;
        self.pipeline.rollups_set_aside.set(aside);
        tracing::debug!(hours, aside, took = ?began.elapsed(), "rolled up");
        Ok(())
    }

    async fn gather(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut size = StepSize::default();
        while !stop.is_cancelled() {
            let step = self.store.rollups_gather(size.0).await;
            if !size.judge(step)?.is_none_or(|step| step.more) {
                break;
            }
        }
        Ok(())
    }

    /// Returns how many hours were computed.
    async fn compute(&self, stop: &CancellationToken) -> Result<i64, StoreError> {
        let mut size = StepSize::default();
        let (mut hours, mut aside) = (0, 0);
        while !stop.is_cancelled() && aside < MOST_ALONE {
            if size.is_one() {
                let Some(first) = self.store.rollups_first_due().await? else {
                    break;
                };
                aside += usize::from(!self.compute_alone(first).await?);
                size.grow();
                continue;
            }
            let step = self.store.rollups_compute(size.0).await;
            if let Some(step) = size.judge(step)? {
                hours += step.taken;
                if !step.more {
                    break;
                }
            }
        }
        Ok(hours)
    }

    async fn try_again(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        for _ in 0..MOST_ALONE {
            let next = self.store.rollups_next_try(self.retry).await?;
            let Some(next) = next.filter(|_| !stop.is_cancelled()) else {
                break;
            };
            self.compute_alone(next).await?;
        }
        Ok(())
    }

    /// Computes one hour, or sets it aside. Returns whether it was computed.
    async fn compute_alone(&self, of: HostHour) -> Result<bool, StoreError> {
        match self.store.rollups_compute_one(of).await {
            Err(error) if fewer_may_succeed(&error) => {
                let (hour, host, reason) = (of.hour, of.host_id, chain(&error));
                tracing::warn!(%hour, host.id = %host, reason, "an hour could not be rolled up: it is set aside");
                self.store.rollups_set_aside(of, &reason).await?;
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }
}

/// How much a step takes. It is halved after a failure and grows by a quarter after a success, so that it
/// closes in on an hour that fails, and recovers when the database was only slow for a while.
struct StepSize(i64);

impl Default for StepSize {
    fn default() -> Self {
        Self(ROLLUP_STEP)
    }
}

impl StepSize {
    fn is_one(&self) -> bool {
        self.0 == 1
    }

    fn grow(&mut self) {
        self.0 = (self.0 + self.0 / 4 + 1).min(ROLLUP_STEP);
    }

    /// The step, or `None` if it failed and should be repeated with the smaller size.
    fn judge(
        &mut self,
        step: Result<RollupStep, StoreError>,
    ) -> Result<Option<RollupStep>, StoreError> {
        match step {
            Ok(step) => {
                self.grow();
                Ok(Some(step))
            }
            Err(error) if fewer_may_succeed(&error) && !self.is_one() => {
                self.0 /= 2;
                let (hours, reason) = (self.0, chain(&error));
                tracing::warn!(hours, reason, "a rollup step failed: the next is smaller");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn fewer_may_succeed(error: &StoreError) -> bool {
    error.is_timeout() || error.is_data_error()
}
