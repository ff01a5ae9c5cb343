//! A batch on its way into the database, whole if it can be, in parts if it must.
//!
//! Parts are taken in order, so that an agent's ranges are. A part that the
//! database refuses for its data is halved; a report that is refused alone is tried
//! again, with pauses, before that is held against it. Every other error is waited
//! out, for as long as it takes.

use std::{ops::Range as Span, time::Duration};

use svc_store::{Range, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Consumer, Watermarks};
use crate::queue::{Origin, Receipt};

/// After a failure that says nothing about the data.
const RETRY: Duration = Duration::from_millis(500);
/// How often the queue is told that we are still at it: well within its patience.
const HOLD: Duration = Duration::from_secs(4);
/// Between the five tries of a report that was refused alone.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

pub(super) struct Storing<'a> {
    consumer: &'a Consumer,
    ranges: &'a [Range],
    slips: &'a [(Origin, Receipt)],
    stop: &'a CancellationToken,
    held_at: Instant,
    pub watermarks: Watermarks,
}

/// A report that the database refuses by itself, every time.
pub(super) struct Refused {
    pub index: usize,
    pub reason: String,
}

/// The process was asked to stop while the database was away.
pub(super) struct Stopped;

impl<'a> Storing<'a> {
    pub fn new(
        consumer: &'a Consumer,
        ranges: &'a [Range],
        slips: &'a [(Origin, Receipt)],
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            consumer,
            ranges,
            slips,
            stop,
            held_at: Instant::now(),
            watermarks: Watermarks::new(),
        }
    }

    /// Returns what was refused for good.
    pub async fn store(&mut self) -> Result<Vec<Refused>, Stopped> {
        let mut refused = self.store_in_parts().await?;
        for pause in PAUSES {
            if refused.is_empty() {
                break;
            }
            tokio::time::sleep(pause).await;
            refused = self.try_again(refused).await?;
        }
        Ok(refused)
    }

    async fn store_in_parts(&mut self) -> Result<Vec<Refused>, Stopped> {
        let (mut parts, mut refused) = (Vec::new(), Vec::new());
        parts.push(0..self.ranges.len());
        while let Some(part) = parts.pop() {
            match self.append(part.clone()).await? {
                Ok(()) => {}
                Err(error) if part.len() == 1 => refused.push(Refused::new(part.start, error)),
                Err(_) => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            }
        }
        Ok(refused)
    }

    async fn try_again(&mut self, refused: Vec<Refused>) -> Result<Vec<Refused>, Stopped> {
        let mut still = Vec::new();
        for Refused { index, .. } in refused {
            if let Err(error) = self.append(index..index + 1).await? {
                still.push(Refused::new(index, error));
            }
        }
        Ok(still)
    }

    /// `Ok(Err(_))` is the data's own fault. All else is waited out.
    async fn append(&mut self, part: Span<usize>) -> Result<Result<(), StoreError>, Stopped> {
        let ranges = &self.ranges[part];
        loop {
            let began = Instant::now();
            match self.consumer.store.samples_append(ranges).await {
                Ok(marks) => {
                    let took = began.elapsed().as_secs_f64();
                    self.consumer.metrics.commit_seconds.observe(took);
                    let marks = marks.iter().map(|mark| (mark.agent_id, mark.acked_seq));
                    self.watermarks.extend(marks);
                    return Ok(Ok(()));
                }
                Err(error) if error.blames_the_data() => return Ok(Err(error)),
                Err(_) if self.stop.is_cancelled() => return Err(Stopped),
                Err(error) => self.wait_out(error).await,
            }
        }
    }

    async fn wait_out(&mut self, error: StoreError) {
        let reason = format!("{:#}", anyhow::Error::from(error));
        tracing::warn!(reason, "samples could not be stored: trying again");
        if self.held_at.elapsed() >= HOLD {
            self.held_at = Instant::now();
            for (_, receipt) in self.slips {
                receipt.hold().await;
            }
        }
        let pause = tokio::time::sleep(RETRY);
        self.stop.run_until_cancelled(pause).await;
    }
}

impl Refused {
    fn new(index: usize, error: StoreError) -> Self {
        let state = error.sqlstate().unwrap_or("no SQLSTATE").to_owned();
        let message = error.server_message().unwrap_or("it cannot be encoded");
        Self {
            index,
            reason: format!("{state}: {message}"),
        }
    }
}
