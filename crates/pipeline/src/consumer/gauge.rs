//! Measures the depth of the queue every two seconds, for `/metrics`.

use std::time::Duration;

use svc_common::periodic::Periodic;
use tokio_util::sync::CancellationToken;

use crate::{metrics::PipelineMetrics, queue::Queue};

const INTERVAL: Duration = Duration::from_secs(2);

/// Sets the gauges of the queue.
#[derive(Debug)]
pub struct DepthGauge {
    pub queue: Queue,
    pub pipeline: PipelineMetrics,
}

impl DepthGauge {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(INTERVAL, stop);
        while periodic.tick().await {
            periodic.until_stopped(self.pass()).await;
        }
        Ok(())
    }

    /// While the queue does not answer, the gauges keep the last depth.
    async fn pass(&self) {
        match self.queue.depth().await {
            Ok(depth) => {
                self.pipeline.queue_up.set(1);
                self.pipeline.depth(&depth);
            }
            Err(error) => {
                self.pipeline.queue_up.set(0);
                tracing::debug!(%error, "the depth of the queue could not be read");
            }
        }
    }
}
