//! From the queue into the database, in batches: history, watermarks, books and
//! latest vitals in one transaction; then, and only then, acknowledgements.

use std::{sync::Arc, time::Duration};

use svc_store::{Range, Store, StoreError, Watermark};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    queue::QueueReceiver,
    session::{Ending, Sessions},
};

const BATCH: usize = 1000;
/// Between two batches, so that they are worth their commit.
const PAUSE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Consumer {
    pub queue: QueueReceiver,
    pub store: Store,
    pub sessions: Arc<Sessions>,
}

impl Consumer {
    /// Consumes until `stop`, and then what is left, once.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = stop.run_until_cancelled(self.queue.batch(BATCH)).await {
            if batch.is_empty() {
                break; // All streams have ended, and nothing is left.
            }
            let began = Instant::now();
            let ranges: Vec<Range> = batch.iter().map(|queued| queued.range.clone()).collect();
            self.store_all(&ranges, &stop).await;
            drop(batch);
            if stop
                .run_until_cancelled(tokio::time::sleep_until(began + PAUSE))
                .await
                .is_none()
            {
                break;
            }
        }
        let rest: Vec<Range> = self
            .queue
            .rest()
            .into_iter()
            .map(|queued| queued.range)
            .collect();
        if !rest.is_empty() {
            self.store_all(&rest, &stop).await;
        }
        stop.cancelled().await;
        Ok(())
    }

    /// A database that is away is waited for: it counts against nothing.
    async fn store_all(&self, ranges: &[Range], stop: &CancellationToken) {
        loop {
            match self.store.samples_append(ranges).await {
                Ok(watermarks) => return self.acknowledge(ranges, &watermarks),
                Err(error) if !error.is_unavailable() => {
                    return self.store_singly(ranges, error).await;
                }
                Err(error) if stop.is_cancelled() => {
                    tracing::warn!(%error, "samples are left to be sent again: the database is away");
                    return;
                }
                Err(error) => tracing::warn!(%error, "samples could not be stored: trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// One bad range must not hold up the others.
    async fn store_singly(&self, ranges: &[Range], error: StoreError) {
        tracing::error!(
            reason = format!("{:#}", anyhow::Error::from(error)),
            "a batch was refused: storing it singly"
        );
        for range in ranges {
            match self.store.samples_append(std::slice::from_ref(range)).await {
                Ok(watermarks) => self.acknowledge(std::slice::from_ref(range), &watermarks),
                Err(error) => {
                    let reason = format!("{:#}", anyhow::Error::from(error));
                    tracing::error!(agent.id = %range.agent_id, reason, "samples could not be stored");
                    self.sessions.end_any(range.agent_id, Ending::Unstored);
                }
            }
        }
    }

    /// A range that is ahead of its agent's watermark was not stored: its stream
    /// ends, and the agent begins again at the watermark.
    fn acknowledge(&self, ranges: &[Range], watermarks: &[Watermark]) {
        self.sessions.acked(watermarks);
        for range in ranges {
            let acked = watermarks
                .iter()
                .find(|watermark| watermark.agent_id == range.agent_id);
            if acked.is_some_and(|acked| acked.acked_seq < range.last_seq) {
                self.sessions.end_any(range.agent_id, Ending::Unstored);
            }
        }
    }
}
