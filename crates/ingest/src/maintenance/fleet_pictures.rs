//! Counts what the console draws of the whole fleet. One instance does it at a time, and the others see that it is done.
//!
//! Looking whether it is due is cheap and happens several times in a period, so that the first host of a new installation is
//! shown within seconds, and another instance takes over soon.

use std::time::Duration;

use svc_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{error_chain::chain, periodic::Periodic};

#[derive(Debug)]
pub struct FleetPictures {
    pub store: Store,
    pub period: Duration,
}

impl FleetPictures {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period / 6, stop);
        while periodic.tick().await {
            match periodic.until_stopped(self.pass()).await {
                Some(Err(error)) if error.is_unavailable() => {
                    let reason = chain(&error);
                    tracing::debug!(reason, "the pictures of the fleet could not be counted");
                }
                Some(Err(error)) => {
                    let reason = chain(&error);
                    tracing::warn!(reason, "the pictures of the fleet cannot be counted");
                    periodic.tick_after(self.period);
                }
                Some(Ok(())) | None => {}
            }
        }
        Ok(())
    }

    async fn pass(&self) -> Result<(), StoreError> {
        self.store.fleet_pictures_refresh(self.period).await?;
        Ok(())
    }
}
