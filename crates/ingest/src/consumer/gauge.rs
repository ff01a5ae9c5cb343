//! How full the queue is, looked at every few seconds for `/metrics`.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::{queue::Queue, telemetry::PipelineMetrics};

const EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct DepthGauge {
    pub queue: Queue,
    pub pipeline: PipelineMetrics,
}

impl DepthGauge {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            stop.run_until_cancelled(self.pass()).await;
        }
        Ok(())
    }

    /// A queue that does not answer keeps the last depth that it had.
    async fn pass(&self) {
        match self.queue.depth().await {
            Ok(depth) => {
                self.pipeline.queue_up.set(1);
                self.pipeline.depth(&depth);
            }
            Err(error) => {
                self.pipeline.queue_up.set(0);
                tracing::debug!(%error, "the queue's depth is not known");
            }
        }
    }
}
