//! The metrics queue: ranges of samples on their way from streams to the consumer.
//!
//! In process, and bounded by ranges and by samples: when it is full, streams
//! wait, stop reading, and their agents keep what they have.

use std::sync::Arc;

use svc_store::Range;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

const RANGES: usize = 8 * 1024;
const SAMPLES: u32 = 100_000;

/// A range and its share of the queue's room, given back when it is consumed.
#[derive(Debug)]
pub struct Queued {
    pub range: Range,
    _room: OwnedSemaphorePermit,
}

/// The streams' end.
#[derive(Clone, Debug)]
pub struct Queue {
    room: Arc<Semaphore>,
    sender: mpsc::Sender<Queued>,
}

/// The consumer's end.
#[derive(Debug)]
pub struct QueueReceiver(mpsc::Receiver<Queued>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is closed")]
pub struct Closed;

impl Queue {
    pub fn in_process() -> (Self, QueueReceiver) {
        let (sender, receiver) = mpsc::channel(RANGES);
        let room = Arc::new(Semaphore::new(SAMPLES as usize));
        (Self { room, sender }, QueueReceiver(receiver))
    }

    /// Waits for room.
    pub async fn push(&self, range: Range) -> Result<(), Closed> {
        let size = u32::try_from(range.samples.len().max(1))
            .unwrap_or(SAMPLES)
            .min(SAMPLES);
        let room = self
            .room
            .clone()
            .acquire_many_owned(size)
            .await
            .map_err(|_| Closed)?;
        self.sender
            .send(Queued { range, _room: room })
            .await
            .map_err(|_| Closed)
    }
}

impl QueueReceiver {
    /// At least one range, and all that are there up to `most`; none once the queue is closed and empty.
    pub async fn batch(&mut self, most: usize) -> Vec<Queued> {
        let mut batch = Vec::new();
        self.0.recv_many(&mut batch, most).await;
        batch
    }

    /// What is there now.
    pub fn rest(&mut self) -> Vec<Queued> {
        let mut rest = Vec::new();
        while let Ok(queued) = self.0.try_recv() {
            rest.push(queued);
        }
        rest
    }
}
