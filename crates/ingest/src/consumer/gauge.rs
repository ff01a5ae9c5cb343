//! How full the queue is, looked at every few seconds for `/metrics`.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{periodic::Periodic, queue::Queue, telemetry::PipelineMetrics};

const EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct DepthGauge {
    pub queue: Queue,
    pub pipeline: PipelineMetrics,
}

impl DepthGauge {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(EVERY, stop);
        while periodic.tick().await {
            periodic.until_stopped(self.pass()).await;
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
