//! The queue in NATS JetStream: a stream on disk, shared by any number of servers and consumers.
//!
//! **No duplicates by retry.** A push publishes until JetStream acknowledges the message, always under the same message
//! id. If only the acknowledgement was lost, JetStream recognises the id and keeps one copy. It remembers ids for two
//! minutes; a retry after a longer outage can create a second copy, which the watermark then skips.
//!
//! **Order.** A heartbeat stream completes one push before it begins the next, so an agent's ranges are in order in the
//! stream. Several consumers may still receive them out of order, or again; the watermark puts that right.
//!
//! **Bounds.** A full stream refuses new messages and keeps the old ones, and the push waits and retries.
//!
//! **Losses.** NATS acknowledges a message before it is synced to disk, so a crash may lose it. The agent has no
//! acknowledgement then, and [`JetStream::gone`] detects the loss. Its consumers may also skip what the stream
//! still has; [`skipped`] repairs that.

mod backlog;
mod connect;
mod consumers;
mod hints;
mod pull;
mod receive;
mod skipped;
mod streams;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    context::{Context, PublishError, PublishErrorKind},
    message::PublishMessage,
    stream::State,
};

pub use backlog::Backlog;
pub use hints::{HintSubscription, Hints};
pub use receive::{Acknowledger, REDELIVERY_DELAY, Receiver};
use streams::MIN_PAYLOAD;
pub use streams::OpenError;

use super::{
    Depth, NatsServers, Parcel, QueueSettings, QueueUnavailable, SHARDS, Ticket, payload, shard_of,
};

/// The stream of the queue.
pub const STREAM: &str = "SVC_INGEST_METRICS";
/// The stream of reports that cannot be stored.
pub const DEAD_LETTERS: &str = "SVC_INGEST_DEAD_LETTERS";

/// The stream of samples that wait for the receiver of the export.
pub const BACKLOG: &str = "SVC_INGEST_EXPORT";
const BACKLOG_SUBJECT: &str = "svc.ingest.export";

/// The position of a message that NATS will not take. It is below all others, so it counts as gone, and its heartbeat stream
/// ends.
const NOWHERE: u64 = 0;
/// The pauses between attempts to publish; the last one repeats.
const RETRY: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// The queue in NATS JetStream.
#[derive(Clone, Debug)]
pub struct JetStream {
    context: Arc<Context>,
    skip_check: Duration,
    /// Whether the last publish failed, so that an outage is logged once and not for each heartbeat stream.
    failing: Arc<AtomicBool>,
    /// Whether a report was too large for NATS, which is logged once.
    refusing: Arc<AtomicBool>,
}

impl JetStream {
    /// Waits for NATS, and creates or verifies the streams and their consumers.
    pub async fn open(servers: &NatsServers, settings: &QueueSettings) -> Result<Self, OpenError> {
        let context = connect::open(servers, settings).await?;
        Ok(Self {
            context: Arc::new(context),
            skip_check: settings.skip_check,
            failing: Arc::default(),
            refusing: Arc::default(),
        })
    }

    /// Whether the stream exists. It is an error if it has other settings than ours. Changes nothing.
    pub async fn check(servers: &NatsServers, settings: &QueueSettings) -> Result<bool, OpenError> {
        connect::check(servers, settings).await
    }

    pub async fn push(&self, parcel: Parcel) -> Ticket {
        let shard = shard_of(parcel.range.agent_id);
        // The header that names the expected stream would keep the message out of every stream that sources ours.
        let message = PublishMessage::build()
            .message_id(message_id(&parcel))
            .payload(payload::encode(&parcel).into());
        drop(parcel); // The push may wait for long, and needs only the payload.
        let mut pauses = RETRY.into_iter();
        loop {
            match self.publish(shard, message.clone()).await {
                Ok(position) => return Ticket { shard, position },
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    self.log_too_large(&error);
                    return Ticket {
                        shard,
                        position: NOWHERE,
                    };
                }
                Err(error) => self.log_failure(&error),
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY[RETRY.len() - 1])).await;
        }
    }

    async fn publish(&self, shard: usize, message: PublishMessage) -> Result<u64, PublishError> {
        let sent = self.context.send_publish(subject(shard), message).await?;
        let stored = sent.await?;
        if self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the metrics queue accepts samples again");
        }
        Ok(stored.sequence)
    }

    fn log_failure(&self, error: &PublishError) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the metrics queue does not accept samples: retrying, agents keep theirs");
        }
    }

    fn log_too_large(&self, error: &PublishError) {
        if !self.refusing.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "NATS does not accept reports of this size any more: set its max_payload to {MIN_PAYLOAD} or more");
        }
    }

    pub fn receiver(&self, shard: usize) -> Receiver {
        Receiver::new(self.context.clone(), shard, self.skip_check)
    }

    pub fn hints(&self) -> Hints {
        Hints::new(self.context.client())
    }

    /// A message is in the queue while the stream contains it and the shard's consumer has yet to deliver it or waits
    /// for its acknowledgement. JetStream does not tell which messages wait: one that was settled ahead of an earlier
    /// one counts as present until none waits or the floor passes it, which is harmless.
    ///
    /// The floor alone is not enough. A crash can restore a consumer whose floor is below messages that it has
    /// delivered, without any that waits: it delivers those never again.
    pub async fn gone(&self, tickets: &[Ticket]) -> Result<HashSet<Ticket>, QueueUnavailable> {
        let state = state(&self.context).await?;
        let held = state.first_sequence..=state.last_sequence;
        let mut settled = [0; SHARDS];
        for (shard, settled) in settled.iter_mut().enumerate() {
            let info = consumers::info(&self.context, shard).await?;
            *settled = match info.num_ack_pending {
                0 => info.delivered.stream_sequence,
                _ => info.ack_floor.stream_sequence,
            };
        }
        let is_gone = |ticket: &&Ticket| {
            settled[ticket.shard] >= ticket.position || !held.contains(&ticket.position)
        };
        Ok(tickets.iter().filter(is_gone).copied().collect())
    }

    pub async fn depth(&self) -> Result<Depth, QueueUnavailable> {
        let state = state(&self.context).await?;
        let mut lag = 0;
        for shard in 0..SHARDS {
            let info = consumers::info(&self.context, shard).await?;
            lag += info.num_pending + info.num_ack_pending as u64;
        }
        let first: SystemTime = state.first_timestamp.into();
        let oldest = first.elapsed().ok().filter(|_| state.messages > 0);
        Ok(Depth {
            ranges: state.messages,
            samples: None,
            bytes: state.bytes,
            oldest: oldest.unwrap_or_default(),
            lag,
        })
    }
}

async fn state(context: &Context) -> Result<State, QueueUnavailable> {
    let stream = context.get_stream(STREAM).await;
    let stream = stream.map_err(QueueUnavailable::new)?;
    Ok(stream.cached_info().state.clone())
}

/// Retries of one push have the same id. The epoch makes the id of a resend over a new heartbeat stream different: after
/// a restore of the database agents send the same numbers again, and JetStream must not drop those as duplicates.
fn message_id(parcel: &Parcel) -> String {
    let Parcel { range, origin } = parcel;
    format!("{}:{}:{}", range.agent_id, origin.epoch, range.last_seq)
}

fn subject(shard: usize) -> String {
    format!("svc.ingest.metrics.{shard}")
}

fn dead_subject(shard: usize) -> String {
    format!("svc.ingest.dead.{shard}")
}
