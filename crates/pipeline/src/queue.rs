//! The metrics queue: carries ranges of samples from the heartbeat streams to the consumer.
//!
//! There are two implementations with one contract, which one suite of tests checks for both:
//!
//! - **At least once.** A parcel is delivered again and again until the consumer settles it.
//! - **In order.** The parcels of one agent are in one shard, and leave it in the order of their pushes. Only parcels
//!   that were put back, or redelivered after a consumer failed, may arrive after later ones.
//! - **Bounded.** A push into a full queue waits. Its stream then stops reading, HTTP/2 flow control stops the client,
//!   and the agent keeps its samples on disk.
//!
//! A sample is nevertheless stored exactly once, and in sequence. That is not the queue's work: the transaction that
//! stores a range compares it with the agent's watermark under a row lock. It skips the part at or below the watermark
//! (a duplicate), and it stores nothing of a range that begins beyond the watermark (out of order), which the consumer
//! then puts back.
//!
//! The queue may also lose a parcel. An agent receives an acknowledgement only after a commit, so it still has the
//! samples; [`Queue::gone`] detects the loss, and the instance ends the stream so that the agent sends them again.

mod in_process;
mod jetstream;
mod nats_servers;
mod payload;
mod settings;
mod weight;

use std::{collections::HashSet, time::Duration};

use futures_util::future::{BoxFuture, Either, Ready};
use svc_store::{AgentId, Range, Watermark};
use uuid::Uuid;

pub use in_process::{Bounds, InProcess};
pub use jetstream::{Backlog, HintSubscription, Hints, JetStream, OpenError};

pub use nats_servers::{NatsAuth, NatsServers};
pub use settings::{QueueSettings, QueueUrl};
pub use weight::weight;

/// Each shard has one consumer in a process. Two writers kept PostgreSQL busy on the machines that were measured; more
/// processes may consume the same shards.
pub const SHARDS: usize = 2;
/// The limits of the consumer's batches.
pub const BATCH: Batch = Batch {
    ranges: 2000,
    samples: 4000,
};

/// How much is delivered at once, at most. A single range is always delivered, however large.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub ranges: usize,
    pub samples: usize,
}

/// A range of one agent's samples, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    pub range: Range,
    pub origin: Origin,
}

/// The stream that brought a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Numbers the agent's streams; the newest stream has the highest.
    pub epoch: i64,
    /// The instance that holds the stream, and receives the commits of its ranges.
    pub instance: Uuid,
}

/// The position of a parcel in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    shard: usize,
    position: u64,
}

/// A push in progress. It is ready at once where the queue has room, which is nearly always, and allocates only where it
/// has not: a stream's future contains one of these, so its size counts for every connected agent.
pub type PushFuture = Either<Ready<Ticket>, BoxFuture<'static, Ticket>>;

/// How full the queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Depth {
    pub ranges: u64,
    /// Known only for the in-process queue.
    pub samples: Option<u64>,
    pub bytes: u64,
    /// The age of the oldest range.
    pub oldest: Duration,
    /// Ranges that are not settled, delivered or not.
    pub lag: u64,
}

/// The results of a batch, for the instance that holds the streams of its reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Committed {
    pub watermarks: Vec<Watermark>,
    pub dead_letters: Vec<DeadLetter>,
}

/// Samples of one agent that the database refuses for good.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    pub agent_id: AgentId,
    pub seqs: Vec<i64>,
}

/// The queue does not answer; a later attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[error("the queue does not answer")]
pub struct QueueUnavailable(#[source] async_nats::Error);

impl QueueUnavailable {
    fn new(error: impl Into<async_nats::Error>) -> Self {
        Self(error.into())
    }
}

/// Either implementation of the queue.
#[derive(Clone, Debug)]
pub enum Queue {
    InProcess(InProcess),
    JetStream(JetStream),
}

impl Batch {
    /// Whether `delivered` has reached a limit, so that more may be waiting.
    pub fn is_filled_by(&self, delivered: &[Delivery]) -> bool {
        let samples = delivered.iter().map(|one| one.parcel.range.samples.len());
        delivered.len() >= self.ranges || samples.sum::<usize>() >= self.samples
    }

    /// The room that is left after `delivered`.
    pub fn after(&self, delivered: &[Delivery]) -> Self {
        let samples = delivered.iter().map(|one| one.parcel.range.samples.len());
        Self {
            ranges: self.ranges.saturating_sub(delivered.len()),
            samples: self.samples.saturating_sub(samples.sum()),
        }
    }
}

impl Queue {
    /// Opens the configured queue. Waits for NATS; a stream with other settings than ours is an error.
    pub async fn open(settings: &QueueSettings) -> Result<Self, OpenError> {
        Ok(match &settings.url {
            QueueUrl::Memory => Self::InProcess(InProcess::new(settings.bounds)),
            QueueUrl::Nats(servers) => Self::JetStream(JetStream::open(servers, settings).await?),
        })
    }

    /// Waits for room, and until the queue has the parcel. It never fails: it waits while the queue is unavailable.
    ///
    /// A caller keeps an agent's parcels in order by completing one push before it begins the next. A push that is
    /// dropped before it completes leaves no parcel in the in-process queue; JetStream may or may not have it.
    pub fn push(&self, parcel: Parcel) -> PushFuture {
        match self {
            Self::InProcess(queue) => queue.push(parcel),
            Self::JetStream(queue) => {
                let queue = queue.clone();
                PushFuture::Right(Box::pin(async move { queue.push(parcel).await }))
            }
        }
    }

    /// One receiver for each shard.
    pub fn receivers(&self) -> Vec<Receiver> {
        let receiver = |shard| match self {
            Self::InProcess(queue) => Receiver::InProcess(queue.receiver(shard)),
            Self::JetStream(queue) => Receiver::JetStream(queue.receiver(shard)),
        };
        (0..SHARDS).map(receiver).collect()
    }

    /// The tickets whose parcels are no longer in the queue: settled or lost.
    ///
    /// The consumer settles a parcel only after its commit. So a caller that calls this first and reads the watermark
    /// afterwards sees the commit of every settled parcel; a parcel that is gone but not committed was lost. In the
    /// other order a parcel that is committed and settled between the two reads would look lost.
    pub async fn gone(&self, tickets: &[Ticket]) -> Result<HashSet<Ticket>, QueueUnavailable> {
        match self {
            Self::InProcess(queue) => Ok(queue.gone(tickets)),
            Self::JetStream(queue) => queue.gone(tickets).await,
        }
    }

    pub async fn depth(&self) -> Result<Depth, QueueUnavailable> {
        match self {
            Self::InProcess(queue) => Ok(queue.depth()),
            Self::JetStream(queue) => queue.depth().await,
        }
    }
}

/// The consumer's end of one shard.
#[derive(Debug)]
pub enum Receiver {
    InProcess(in_process::Receiver),
    JetStream(jetstream::Receiver),
}

impl Receiver {
    /// The next parcels, at most `most`. Waits up to a second for the first one, and may return none.
    ///
    /// Callers must await it to the end: if it is dropped, the messages of a JetStream pull stay assigned to this
    /// receiver, and arrive only after their redelivery timeout.
    pub async fn batch(&mut self, most: Batch) -> Vec<Delivery> {
        match self {
            Self::InProcess(receiver) => receiver.batch(most).await,
            Self::JetStream(receiver) => receiver.batch(most).await,
        }
    }

    /// The parcels that wait, at most `most`, without waiting for one. It must be awaited to the end, as
    /// [`batch`](Self::batch).
    pub async fn available(&mut self, most: Batch) -> Vec<Delivery> {
        match self {
            Self::InProcess(receiver) => receiver.available(most),
            Self::JetStream(receiver) => receiver.available(most).await,
        }
    }

    /// All parcels that exist in this process alone, for the last batch before it ends.
    pub fn remaining(&mut self) -> Vec<Delivery> {
        match self {
            Self::InProcess(receiver) => receiver.remaining(),
            Self::JetStream(_) => Vec::new(),
        }
    }
}

/// A parcel that was delivered to the consumer.
#[derive(Debug)]
pub struct Delivery {
    pub parcel: Parcel,
    pub receipt: Receipt,
}

/// The consumer's answer to the queue for one parcel. If it is dropped without an answer, JetStream delivers the parcel
/// again, and the in-process queue forgets it (its agent sends it again).
#[derive(Debug)]
pub struct Receipt {
    /// How often it was delivered before.
    earlier: u32,
    handle: Handle,
}

#[derive(Debug)]
enum Handle {
    InProcess(in_process::Slot),
    JetStream(jetstream::Acknowledger),
}

impl Receipt {
    /// Whether it was delivered before.
    pub fn is_redelivered(&self) -> bool {
        self.earlier > 0
    }

    /// For how long it was put back, at least.
    pub fn put_back_for(&self) -> Duration {
        let delay = match self.handle {
            Handle::InProcess(_) => in_process::REDELIVERY_DELAY,
            Handle::JetStream(_) => jetstream::REDELIVERY_DELAY,
        };
        delay * self.earlier
    }

    /// The parcel is stored, or will never be: the queue removes it.
    pub async fn settle(self) {
        match self.handle {
            Handle::InProcess(slot) => drop(slot),
            Handle::JetStream(message) => message.settle().await,
        }
    }

    /// An earlier parcel of the agent is missing: the queue delivers this one again after a short delay.
    pub async fn put_back(self, parcel: Parcel) {
        match self.handle {
            Handle::InProcess(slot) => slot.put_back(parcel, self.earlier + 1),
            Handle::JetStream(message) => message.put_back().await,
        }
    }

    /// The parcel is still being processed: postpones its redelivery to another consumer.
    pub async fn hold(&self) {
        match &self.handle {
            Handle::InProcess(_) => {}
            Handle::JetStream(message) => message.hold().await,
        }
    }

    /// Records a parcel that cannot be stored: in the log, and with JetStream in the stream of dead letters.
    pub async fn dead_letter(&self, parcel: &Parcel, reason: &str) -> Result<(), QueueUnavailable> {
        let range = &parcel.range;
        tracing::error!(agent.id = %range.agent_id, first_seq = range.first_seq, last_seq = range.last_seq, reason, "samples are a dead letter");
        match &self.handle {
            Handle::InProcess(_) => Ok(()),
            Handle::JetStream(message) => message.dead_letter(parcel, reason).await,
        }
    }
}

/// The shard of an agent: all of its ranges are in one, so that they stay in order.
pub fn shard_of(agent: AgentId) -> usize {
    // The last byte is random in all versions of UUID that the service creates.
    let [.., last] = *agent.0.as_bytes();
    usize::from(last) % SHARDS
}
