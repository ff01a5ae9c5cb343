//! Reads the gauges of the whole fleet at a slow period, if this instance is the reporter.

use std::time::Duration;

use svc_store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{error_chain::chain, periodic::Periodic, telemetry::FleetMetrics};

/// The wait after the database was away or slow.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct FleetReport {
    pub store: Store,
    pub metrics: FleetMetrics,
    pub instance: watch::Receiver<Uuid>,
    /// How long samples are kept.
    pub retention: Duration,
    pub period: Duration,
}

#[derive(PartialEq)]
enum Pass {
    Done,
    RetrySoon,
}

impl FleetReport {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop);
        while periodic.tick().await {
            if periodic.until_stopped(self.pass()).await == Some(Pass::RetrySoon) {
                periodic.tick_after(RETRY.min(self.period));
            }
        }
        Ok(())
    }

    /// After a failure the last numbers stay until they are too old.
    async fn pass(&self) -> Pass {
        let instance = *self.instance.borrow();
        match self.store.fleet_gauges(instance, self.retention).await {
            Ok(gauges) => self.metrics.set(gauges),
            Err(error) if error.is_unavailable() => {
                let reason = chain(&error);
                tracing::debug!(reason, "the gauges of the fleet could not be read");
                return Pass::RetrySoon;
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(reason, "the gauges of the fleet cannot be read");
            }
        }
        Pass::Done
    }
}
