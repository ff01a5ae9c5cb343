//! The queue in NATS JetStream: a durable stream on disk, shared by any number of
//! serving and consuming processes.
//!
//! A push returns once the stream has the message. It is repeated until then, under
//! one message id, so that a lost answer makes no second copy; and because a stream's
//! task pushes one range at a time, an agent's ranges stay in order. The stream
//! refuses what is new when it is full, and keeps what is old. NATS may still lose a
//! message (its acknowledgement is not a sync to disk): then its agent was told
//! nothing, and [`JetStream::gone`] is how the instance notices.

mod connect;
mod consumers;
mod hints;
mod receive;
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
    context::{Context, PublishError},
    message::PublishMessage,
    stream::State,
};

pub use hints::{Heard, Hints};
pub use receive::{Acknowledger, Receiver};
pub use streams::OpenError;

use super::{
    Depth, NatsServers, Parcel, QueueSettings, SHARDS, Ticket, Unanswered, payload, shard_of,
};

/// The stream of the queue, and the subjects that it takes.
pub const STREAM: &str = "SVC_INGEST_METRICS";
/// The stream of what could not be stored.
pub const DEAD_LETTERS: &str = "SVC_INGEST_DEAD_LETTERS";

/// Between two tries to publish.
const RETRY: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

#[derive(Clone, Debug)]
pub struct JetStream {
    context: Arc<Context>,
    /// Whether the last publish failed: one log line a change, not one a stream.
    failing: Arc<AtomicBool>,
}

impl JetStream {
    /// Waits for NATS, and makes or verifies the streams and their consumers.
    pub async fn open(servers: &NatsServers, settings: &QueueSettings) -> Result<Self, OpenError> {
        let context = connect::open(servers, settings).await?;
        Ok(Self {
            context: Arc::new(context),
            failing: Arc::default(),
        })
    }

    /// Looks, and changes nothing: whether the stream is there, as it should be.
    pub async fn check(servers: &NatsServers, settings: &QueueSettings) -> Result<bool, OpenError> {
        connect::check(servers, settings).await
    }

    pub async fn push(&self, parcel: Parcel) -> Ticket {
        let shard = shard_of(parcel.range.agent_id);
        let message = PublishMessage::build()
            .message_id(message_id(&parcel))
            .expected_stream(STREAM)
            .payload(payload::encode(&parcel).into());
        let mut pauses = RETRY.into_iter();
        loop {
            match self.publish(shard, message.clone()).await {
                Ok(position) => return Ticket { shard, position },
                Err(error) => self.complain(&error),
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY[RETRY.len() - 1])).await;
        }
    }

    async fn publish(&self, shard: usize, message: PublishMessage) -> Result<u64, PublishError> {
        let sent = self.context.send_publish(subject(shard), message).await?;
        let taken = sent.await?;
        if self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the metrics queue takes samples again");
        }
        Ok(taken.sequence)
    }

    fn complain(&self, error: &PublishError) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the metrics queue takes no samples: trying again, agents keep theirs");
        }
    }

    pub fn receiver(&self, shard: usize) -> Receiver {
        Receiver::new(self.context.clone(), shard)
    }

    pub fn hints(&self) -> Hints {
        Hints::new(self.context.client())
    }

    /// Settled messages leave the stream, and are below the consumer's floor.
    pub async fn gone(&self, tickets: &[Ticket]) -> Result<HashSet<Ticket>, Unanswered> {
        let state = self.state().await?;
        let mut floors = [0; SHARDS];
        for (shard, floor) in floors.iter_mut().enumerate() {
            let info = consumers::info(&self.context, shard).await?;
            *floor = info.ack_floor.stream_sequence;
        }
        let held = state.first_sequence..=state.last_sequence;
        let is_gone = |ticket: &&Ticket| {
            floors[ticket.shard] >= ticket.position || !held.contains(&ticket.position)
        };
        Ok(tickets.iter().filter(is_gone).copied().collect())
    }

    pub async fn depth(&self) -> Result<Depth, Unanswered> {
        let state = self.state().await?;
        let mut lag = 0;
        for shard in 0..SHARDS {
            let info = consumers::info(&self.context, shard).await?;
            lag += info.num_pending + info.num_ack_pending as u64;
        }
        let first: SystemTime = state.first_timestamp.into();
        let oldest = first.elapsed().unwrap_or_default();
        Ok(Depth {
            ranges: state.messages,
            samples: None,
            bytes: state.bytes,
            oldest: if state.messages > 0 {
                oldest
            } else {
                Duration::ZERO
            },
            lag,
        })
    }

    async fn state(&self) -> Result<State, Unanswered> {
        let stream = self.context.get_stream(STREAM).await;
        let stream = stream.map_err(|error| Unanswered(error.into()))?;
        Ok(stream.cached_info().state.clone())
    }
}

/// The epoch tells a resend over a new stream from a repetition of this one: after a
/// restore of the database the same numbers come again, and must not be swallowed.
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
