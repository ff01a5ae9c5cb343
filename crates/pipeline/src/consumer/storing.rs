//! Stores one batch: as a whole if possible, otherwise in parts.
//!
//! **Splitting.** A transaction succeeds or fails as a whole, and the database's error does not name the report at fault.
//! So a part that the database refuses for its data is halved, and each half is stored in a transaction of its own,
//! until a refused part is a single report. One bad report among n costs about 2·log₂(n) transactions.
//!
//! **Order.** An agent's ranges must be stored in sequence: a range beyond the watermark is not refused, but nothing of
//! it is stored. The stack of parts therefore receives the second half first, so that parts are stored from left to
//! right. If a report in the middle is refused, the later reports of its agent are beyond the watermark. The consumer
//! puts those back, and stores them when they are delivered again, after the gap of the dead letter has moved the
//! watermark. Reports of other agents are not affected.
//!
//! **Attempts.** A report that is refused alone is stored again up to four times, with pauses, before it counts as a dead
//! letter: the refusal may have a temporary cause, such as a change of the schema at the same moment. Every other error
//! (the database is down, full or locked) says nothing about the data. It is retried without a limit, while
//! [`Receipt::hold`](crate::queue::Receipt::hold) keeps JetStream from delivering the batch to another consumer. Only a stop of the process ends that.
//!
//! **Time.** A part that exceeds its time limit is not repeated as it is, but in smaller ones (`part_size.rs`). A report that
//! exceeds it alone is put back without a limit: the reports behind it, in this batch and the next ones, do not wait for it.
//!
//! **Acknowledgements.** What a call has committed is acknowledged at once, also if a later part of the call or of the batch
//! fails.

use std::{ops::Range as Span, time::Duration};

use svc_common::error_chain::chain;
use svc_store::{Range, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Consumer, Deliveries, PendingAcks, Watermarks};

/// The pause after a failure that does not blame the data.
const RETRY: Duration = Duration::from_millis(500);
/// How often the batch is held: well below JetStream's redelivery timeout of 15 s.
const HOLD_INTERVAL: Duration = Duration::from_secs(4);
/// The pauses before the further attempts of a report that was refused alone.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The storing of one batch.
pub(super) struct Storing<'a> {
    consumer: &'a Consumer,
    ranges: &'a [Range],
    deliveries: &'a Deliveries,
    stop: &'a CancellationToken,
    held_at: Instant,
    pub watermarks: Watermarks,
    /// The indices of reports that exceeded the time limit alone.
    pub late: Vec<usize>,
    /// The watermarks that were acknowledged to the agents.
    sent: Watermarks,
}

/// A report that the database refuses at every attempt.
pub(super) struct Refused {
    pub index: usize,
    pub reason: String,
}

/// The process stops while the database is unavailable.
pub(super) struct Stopped;

/// What became of a part.
enum Answer {
    Stored,
    /// It exceeded its time limit.
    Late,
    /// The database refuses its data.
    Refused(StoreError),
}

impl<'a> Storing<'a> {
    pub fn new(
        consumer: &'a Consumer,
        ranges: &'a [Range],
        deliveries: &'a Deliveries,
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            consumer,
            ranges,
            deliveries,
            stop,
            held_at: Instant::now(),
            watermarks: Watermarks::new(),
            late: Vec::new(),
            sent: Watermarks::new(),
        }
    }

    /// Returns the reports that were refused at every attempt.
    pub async fn store(&mut self) -> Result<Vec<Refused>, Stopped> {
        let mut refused = self.store_in_parts().await?;
        for pause in PAUSES {
            if refused.is_empty() {
                break;
            }
            tokio::time::sleep(pause).await;
            refused = self.retry(refused).await?;
        }
        Ok(refused)
    }

    async fn store_in_parts(&mut self) -> Result<Vec<Refused>, Stopped> {
        let (mut parts, mut refused) = (Vec::new(), Vec::new());
        parts.push(0..self.ranges.len());
        while let Some(part) = parts.pop() {
            let (part, rest) = self.consumer.part_size.cut(part);
            parts.extend((!rest.is_empty()).then_some(rest));
            match self.append(part.clone()).await? {
                Answer::Stored => {}
                Answer::Late if part.len() == 1 => self.late.push(part.start),
                Answer::Late => parts.push(part),
                Answer::Refused(error) if part.len() == 1 => {
                    refused.push(Refused::new(part.start, &error));
                }
                Answer::Refused(_) => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            }
        }
        Ok(refused)
    }

    async fn retry(&mut self, refused: Vec<Refused>) -> Result<Vec<Refused>, Stopped> {
        let mut still = Vec::new();
        for Refused { index, .. } in refused {
            match self.append(index..index + 1).await? {
                Answer::Stored => {}
                Answer::Late => self.late.push(index),
                Answer::Refused(error) => still.push(Refused::new(index, &error)),
            }
        }
        Ok(still)
    }

    /// Stores a part. Every failure that is neither its size nor its data is retried.
    async fn append(&mut self, part: Span<usize>) -> Result<Answer, Stopped> {
        let ranges = &self.ranges[part.clone()];
        loop {
            self.hold().await;
            let began = Instant::now();
            let store = &self.consumer.store;
            let appended = store.samples_append_to(&mut self.watermarks, ranges).await;
            self.acknowledge(part.clone()).await;
            let error = match appended {
                Ok(_left_out) => {
                    let took = began.elapsed();
                    self.consumer.part_size.stored(ranges.len(), took);
                    let seconds = took.as_secs_f64();
                    self.consumer.metrics.commit_seconds.observe(seconds);
                    return Ok(Answer::Stored);
                }
                Err(error) if error.is_data_error() => return Ok(Answer::Refused(error)),
                Err(_) if self.stop.is_cancelled() => return Err(Stopped),
                Err(error) => error,
            };
            self.pause(&error).await;
            if error.is_timeout() {
                self.consumer.part_size.late(ranges.len());
                return Ok(Answer::Late);
            }
        }
    }

    /// Sends the agents of this part their watermarks, where they have changed.
    async fn acknowledge(&mut self, part: Span<usize>) {
        let mut acks = PendingAcks::default();
        for (range, (origin, _)) in self.ranges[part.clone()].iter().zip(&self.deliveries[part]) {
            let agent = range.agent_id;
            let Some(acked) = self.watermarks.get(&agent).copied() else {
                continue;
            };
            if acked > 0 && self.sent.insert(agent, acked) != Some(acked) {
                acks.watermark(origin.instance, agent, acked);
            }
        }
        self.consumer.acks.send(acks).await;
    }

    async fn pause(&self, error: &StoreError) {
        tracing::warn!(
            reason = chain(error),
            "samples could not be stored: retrying"
        );
        let pause = tokio::time::sleep(RETRY);
        self.stop.run_until_cancelled(pause).await;
    }

    async fn hold(&mut self) {
        if self.held_at.elapsed() < HOLD_INTERVAL {
            return;
        }
        self.held_at = Instant::now();
        for (_, receipt) in self.deliveries {
            receipt.hold().await;
        }
    }
}

impl Refused {
    fn new(index: usize, error: &StoreError) -> Self {
        let state = error.sqlstate().unwrap_or("no SQLSTATE");
        let message = error.server_message();
        let message = message.as_deref().unwrap_or("it cannot be encoded");
        Self {
            index,
            reason: format!("{state}: {message}"),
        }
    }
}
