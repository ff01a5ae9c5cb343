//! Rollouts of agents' releases go on by themselves: a stage reaches its agents, and then the rollout advances or halts.
//!
//! One instance does this, the reporter. Two that both take themselves for it do no harm: a step is taken only if the rollout
//! still is where it was judged.

mod judge;

use std::time::Duration;

use svc_store::{RolloutStep, RunningRollout, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{clock::DatabaseClock, error_chain::chain, periodic::Periodic};
use judge::judge;

#[derive(Debug)]
pub struct Rollouts {
    pub store: Store,
    pub clock: DatabaseClock,
    pub instance: watch::Receiver<Uuid>,
    pub period: Duration,
    /// How long an agent must be offline to count as dark: longer than a reboot.
    pub dark_after: Duration,
}

impl Rollouts {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop);
        while periodic.tick().await {
            if let Some(Err(error)) = periodic.until_stopped(self.pass()).await {
                let reason = chain(&error);
                tracing::warn!(reason, "rollouts: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&self) -> Result<(), StoreError> {
        let instance = *self.instance.borrow();
        for rollout in self.store.rollouts_running(instance).await? {
            self.go_on(&rollout).await?;
        }
        Ok(())
    }

    /// Outside its hours a rollout reaches nobody else and does not advance, but it halts.
    async fn go_on(&self, rollout: &RunningRollout) -> Result<(), StoreError> {
        let open = rollout.hours.contain(self.clock.now());
        let stage = usize::try_from(rollout.stage).unwrap_or(usize::MAX);
        if let Some(stage) = rollout.stages.get(stage).filter(|_| open) {
            self.store.rollout_reach(rollout.serial, *stage).await?;
        }
        let figures = self
            .store
            .rollout_figures(rollout.serial, self.dark_after)
            .await?;
        let Some(step) = judge(stage == 0, open && rollout.soaked, &figures) else {
            return Ok(());
        };
        if self.store.rollout_step(rollout, &step).await? {
            let serial = rollout.serial;
            match step {
                RolloutStep::Advance => tracing::info!(serial, "a rollout has passed a stage"),
                RolloutStep::Halt(reason) => {
                    tracing::warn!(serial, reason, "a rollout was halted");
                }
            }
        }
        Ok(())
    }
}
