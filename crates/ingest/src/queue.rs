//! The metrics queue: ranges of samples on their way from streams to the consumer.
//!
//! A closed set of two, with one contract (`tests/it/queue.rs` holds both to it):
//! what was pushed is delivered, in order within an agent, again and again until it
//! is settled; the queue is bounded, and who pushes into a full one waits, stops
//! reading, and its agent keeps what it has. Nothing here acknowledges anything to
//! an agent: that follows from a commit alone, so that the queue may lose a range
//! without breaking a promise. [`Queue::gone`] tells when it has.

mod in_process;
mod jetstream;
mod nats_servers;
mod payload;
mod settings;

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use futures_util::future::{BoxFuture, Either, Ready};
use svc_store::{AgentId, Range, Watermark};
use uuid::Uuid;

pub use in_process::{Bounds, InProcess};
pub use jetstream::{Heard, Hints, JetStream, OpenError};
pub use nats_servers::{NatsAuth, NatsServers};
pub use settings::{QueueSettings, QueueUrl};

/// Two writers keep PostgreSQL busy on the machines that were measured; more
/// processes may consume the same shards.
pub const SHARDS: usize = 2;
/// What is delivered at once, at most.
pub const BATCH: Batch = Batch {
    ranges: 2000,
    samples: 4000,
};

/// How much is delivered at once: both hold, but a single range is always delivered.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub ranges: usize,
    pub samples: usize,
}

/// A range, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    pub range: Range,
    pub origin: Origin,
}

/// The stream that brought a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The agent's streams are counted: the newest has the highest.
    pub epoch: i64,
    /// The instance that holds the stream, and is told what is committed.
    pub instance: Uuid,
}

/// Where a parcel lies, for as long as the queue has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    shard: usize,
    position: u64,
}

/// A push: done at once where there is room, which there nearly always is, and large
/// only where there is not. Streams hold one of these for as long as they live.
pub type Pushing = Either<Ready<Ticket>, BoxFuture<'static, Ticket>>;

/// How full the queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Depth {
    pub ranges: u64,
    /// Known only of the queue in this process.
    pub samples: Option<u64>,
    pub bytes: u64,
    /// The age of the oldest range.
    pub oldest: Duration,
    /// Delivered or not, not yet settled by the consumers.
    pub lag: u64,
}

/// What became of reports, for the instance whose streams brought them.
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

/// The queue did not answer; it may later.
#[derive(Debug, thiserror::Error)]
#[error("the queue does not answer")]
pub struct Unanswered(#[source] pub(crate) async_nats::Error);

#[derive(Clone, Debug)]
pub enum Queue {
    InProcess(InProcess),
    JetStream(JetStream),
}

impl Batch {
    /// Whether nothing more could be delivered with it.
    pub fn is_filled_by(&self, delivered: &[Delivery]) -> bool {
        let samples = delivered.iter().map(|one| one.parcel.range.samples.len());
        delivered.len() >= self.ranges || samples.sum::<usize>() >= self.samples
    }
}

impl Queue {
    /// The queue that the configuration names. NATS is waited for; a stream that
    /// was made with other settings is an error.
    pub async fn open(settings: &QueueSettings) -> Result<Self, OpenError> {
        Ok(match &settings.url {
            QueueUrl::Memory => Self::InProcess(InProcess::new(settings.bounds)),
            QueueUrl::Nats(servers) => Self::JetStream(JetStream::open(servers, settings).await?),
        })
    }

    /// Waits for room, and until the queue has it. Never fails: a queue that is away
    /// is waited for. Who pushes an agent's parcels one after the other keeps them in order.
    pub fn push(&self, parcel: Parcel) -> Pushing {
        match self {
            Self::InProcess(queue) => queue.push(parcel),
            Self::JetStream(queue) => {
                let queue = queue.clone();
                Pushing::Right(Box::pin(async move { queue.push(parcel).await }))
            }
        }
    }

    /// One receiver a shard.
    pub fn receivers(&self) -> Vec<Receiver> {
        let shards = 0..SHARDS;
        match self {
            Self::InProcess(queue) => shards
                .map(|shard| Receiver::InProcess(queue.receiver(shard)))
                .collect(),
            Self::JetStream(queue) => shards
                .map(|shard| Receiver::JetStream(queue.receiver(shard)))
                .collect(),
        }
    }

    /// Those of `tickets` whose parcels the queue no longer has: settled, or lost.
    /// What was settled after a commit was committed before this is asked.
    pub async fn gone(&self, tickets: &[Ticket]) -> Result<HashSet<Ticket>, Unanswered> {
        match self {
            Self::InProcess(queue) => Ok(queue.gone(tickets)),
            Self::JetStream(queue) => queue.gone(tickets).await,
        }
    }

    pub async fn depth(&self) -> Result<Depth, Unanswered> {
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
    /// What is there, up to `most`; waits a while for something to be. To be awaited
    /// to its end: what is on its way to a receiver that gave up comes late.
    pub async fn batch(&mut self, most: Batch) -> Vec<Delivery> {
        match self {
            Self::InProcess(receiver) => receiver.batch(most).await,
            Self::JetStream(receiver) => receiver.batch(most).await,
        }
    }

    /// What would be lost with this process.
    pub fn rest(&mut self) -> Vec<Delivery> {
        match self {
            Self::InProcess(receiver) => receiver.rest(),
            Self::JetStream(_) => Vec::new(),
        }
    }
}

/// A parcel in the consumer's hands.
#[derive(Debug)]
pub struct Delivery {
    pub parcel: Parcel,
    pub receipt: Receipt,
}

/// What is owed to the queue for a parcel. The queue keeps it until it is settled:
/// one whose receipt is dropped is delivered again by JetStream, and forgotten in process.
#[derive(Debug)]
pub struct Receipt {
    /// When it was pushed.
    pub since: SystemTime,
    /// Whether it was delivered before.
    pub again: bool,
    handle: Handle,
}

#[derive(Debug)]
enum Handle {
    InProcess(in_process::Place),
    JetStream(jetstream::Acknowledger),
}

impl Receipt {
    pub fn age(&self) -> Duration {
        self.since.elapsed().unwrap_or_default()
    }

    /// It is stored, or will never be: the queue may forget it.
    pub async fn settle(self) {
        match self.handle {
            Handle::InProcess(place) => drop(place),
            Handle::JetStream(message) => message.settle().await,
        }
    }

    /// Something before it is missing: it is delivered again in a while.
    pub async fn put_back(self, parcel: Parcel) {
        match self.handle {
            Handle::InProcess(place) => place.put_back(parcel, self.since),
            Handle::JetStream(message) => message.put_back().await,
        }
    }

    /// It is still being worked on: nobody else is to have it.
    pub async fn hold(&self) {
        match &self.handle {
            Handle::InProcess(_) => {}
            Handle::JetStream(message) => message.hold().await,
        }
    }

    /// Keeps a copy for people to look at; in process the log line is all there is.
    pub async fn bury(&self, parcel: &Parcel, reason: &str) -> Result<(), Unanswered> {
        let range = &parcel.range;
        tracing::error!(agent.id = %range.agent_id, first_seq = range.first_seq, last_seq = range.last_seq, reason, "samples are a dead letter");
        match &self.handle {
            Handle::InProcess(_) => Ok(()),
            Handle::JetStream(message) => message.bury(parcel, reason).await,
        }
    }
}

/// By agent, so that an agent's ranges stay in order.
pub fn shard_of(agent: AgentId) -> usize {
    // The last bytes of a UUID are random in every version that we make.
    let [.., last] = *agent.0.as_bytes();
    usize::from(last) % SHARDS
}
