//! Finds messages that a JetStream consumer skips, and repairs that without taking a message from any other reader.
//!
//! After a crash or a loss of power NATS may come back in a state in which it delivers nothing and reports no error:
//!
//! - **The stream has lost its end.** NATS syncs messages and the state of consumers to disk at different moments. The
//!   stream may end below the number that a consumer has delivered last. New messages get numbers that the consumer
//!   believes to have delivered already.
//! - **Removed messages are back.** The consumers have passed them, so they are not delivered and settled again.
//! - **The stream does not find its messages.** A consumer reads its messages through an index by subject. Where the
//!   index is wrong, the consumer finds none of its messages, and moves to the end of the stream past each new one.
//!
//! **A healthy stream may look the same for a moment:** between an acknowledgement and the removal of its message, and in a
//! cluster while one node answers for the stream and another node, further ahead, for a consumer. So a finding counts only
//! if two checks in a row make it at the same first message.
//!
//! **A healthy stream may look the same for long** if another reader is behind. Interest retention keeps a message until its
//! last reader has it. NATS lists the consumers of others, but not those through which other streams source or mirror ours.
//! So a message that no listed consumer wants may still be wanted.
//!
//! **The first remedy takes nothing from others.** Our own consumers are deleted and created again
//! ([`Remedy::BeginAnew`]). JetStream then removes the messages that no other reader wants. If such a message was not
//! acknowledged to its agent, [`super::JetStream::gone`] finds it lost, and the agent sends it again. All other messages are
//! delivered once more, and the watermark skips those that are stored already.
//!
//! **The second remedy drops messages** ([`Remedy::Drop`]), and only where no reader can get them. There are two cases. If
//! the stream is empty, its numbers are moved beyond those of a consumer. If our consumers were created after the first
//! message came and have not found it, the index is wrong; after the purge NATS begins new files. Several processes may
//! repair at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    consumer::{DeliverPolicy, Info},
    context::Context,
    stream::{LastRawMessageErrorKind, State, Stream},
};
use futures_util::TryStreamExt;

use super::{consumers, state};
use crate::queue::{QueueUnavailable, SHARDS};

/// The checks of one shard.
#[derive(Debug)]
pub(super) struct SkipCheck {
    context: Arc<Context>,
    /// How often to look, while nothing is delivered.
    interval: Duration,
    /// When the shard delivered a message, or was checked.
    healthy_at: Instant,
    /// The first message of the stream, if the last check found that the stream needs a repair.
    suspect: Option<u64>,
}

/// What one check sees.
struct Look {
    own: Vec<Info>,
    others: Vec<Info>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// Our consumers are deleted, and created again.
    BeginAnew,
    /// Messages below this number are dropped. It may be beyond the end of the stream, which then goes on from there.
    Drop { below: u64 },
}

impl SkipCheck {
    pub(super) fn new(context: Arc<Context>, interval: Duration) -> Self {
        Self {
            context,
            interval,
            healthy_at: Instant::now(),
            suspect: None,
        }
    }

    /// A message was delivered, so none is skipped.
    pub(super) fn delivered(&mut self) {
        self.healthy_at = Instant::now();
        self.suspect = None;
    }

    /// Nothing was delivered: if that has lasted for long enough, looks for the reason.
    pub(super) async fn idle(&mut self) -> Result<(), QueueUnavailable> {
        if self.healthy_at.elapsed() < self.interval {
            return Ok(());
        }
        self.healthy_at = Instant::now();
        let stream = consumers::stream(&self.context).await?;
        let look = Look::take(&self.context, &stream).await?;
        let remedy = look.remedy(&stream).await?;
        let first = look.state.first_sequence;
        let before = self.suspect.take();
        match remedy {
            Some(remedy) if before == Some(first) => look.apply(remedy, &stream).await,
            found => {
                self.suspect = found.map(|_| first);
                Ok(())
            }
        }
    }
}

impl Look {
    /// Consumers are read before the stream. Without a crash the stream's last number only grows, so it cannot be below a number
    /// that a consumer had delivered before.
    async fn take(context: &Context, stream: &Stream<()>) -> Result<Self, QueueUnavailable> {
        let listed = stream.consumers().try_collect::<Vec<Info>>().await;
        let listed = listed.map_err(QueueUnavailable::new)?;
        let names: Vec<String> = (0..SHARDS).map(consumers::name).collect();
        let (own, others) = listed
            .into_iter()
            .partition(|consumer| names.contains(&consumer.name));
        let state = state(context).await?;
        Ok(Self { own, others, state })
    }

    async fn remedy(&self, stream: &Stream<()>) -> Result<Option<Remedy>, QueueUnavailable> {
        let State { last_sequence, .. } = self.state;
        let ahead = |one: &&Info| one.delivered.stream_sequence > last_sequence;
        if self.own.iter().any(|one| ahead(&one)) {
            return Ok(Some(Remedy::BeginAnew));
        }
        if self.state.messages == 0 {
            let furthest = self.others.iter().filter(ahead);
            let furthest = furthest.map(|one| one.delivered.stream_sequence).max();
            return Ok(furthest.map(|number| Remedy::Drop { below: number + 1 }));
        }
        if !self.is_passed() {
            return Ok(None);
        }
        let first_came = self.state.first_timestamp;
        if !self.own.iter().all(|one| one.created > first_came) {
            return Ok(Some(Remedy::BeginAnew));
        }
        let below = self.passed().min(last_sequence) + 1;
        let lost = self.is_first_lost(stream).await?;
        Ok(lost.then_some(Remedy::Drop { below }))
    }

    /// Whether every listed consumer is finished with the first message, and ours are finished with all messages. False if the
    /// list is incomplete: NATS leaves out a consumer whose node does not answer.
    fn is_passed(&self) -> bool {
        let all_listed = self.own.len() + self.others.len() >= self.state.consumer_count;
        let nothing = |one: &Info| one.num_pending == 0 && one.num_ack_pending == 0;
        all_listed
            && self.own.len() == SHARDS
            && self.own.iter().all(nothing)
            && self.state.first_sequence <= self.passed()
    }

    /// Every listed consumer is finished with the messages up to this number: it will deliver none of them, and waits for no
    /// acknowledgement of one.
    fn passed(&self) -> u64 {
        let all = self.own.iter().chain(&self.others);
        all.map(passed_by).min().unwrap_or_default()
    }

    /// Whether the first message is lost: its consumer has never delivered any message, or NATS itself cannot read it. A message
    /// that was removed since the state was read is not lost.
    async fn is_first_lost(&self, stream: &Stream<()>) -> Result<bool, QueueUnavailable> {
        let first = match stream.get_raw_message(self.state.first_sequence).await {
            Ok(message) => message.subject,
            Err(error) if error.kind() == LastRawMessageErrorKind::Other => {
                return Err(QueueUnavailable::new(error));
            }
            Err(_) => {
                let now = stream.get_info().await.map_err(QueueUnavailable::new)?;
                return Ok(now.state.first_sequence == self.state.first_sequence);
            }
        };
        let mut own = self.own.iter();
        Ok(own.any(|one| {
            one.config.filter_subject == first.as_str() && one.delivered.consumer_sequence == 0
        }))
    }

    async fn apply(&self, remedy: Remedy, stream: &Stream<()>) -> Result<(), QueueUnavailable> {
        tracing::warn!(
            messages = self.state.messages,
            first = self.state.first_sequence,
            last = self.state.last_sequence,
            ?remedy,
            "consumers have passed messages of the stream, as after a crash of NATS: repairing it"
        );
        match remedy {
            Remedy::BeginAnew => self.begin_anew(stream).await,
            Remedy::Drop { below } => {
                let purged = stream.purge().sequence(below).await;
                purged.map(drop).map_err(QueueUnavailable::new)
            }
        }
    }

    /// The settings stay, because an administrator may have chosen them.
    async fn begin_anew(&self, stream: &Stream<()>) -> Result<(), QueueUnavailable> {
        for consumer in &self.own {
            let mut settings = consumer.config.clone();
            settings.deliver_policy = DeliverPolicy::All;
            let deleted = stream.delete_consumer(&consumer.name).await;
            deleted.map_err(QueueUnavailable::new)?;
            let created = stream.create_consumer(settings).await;
            created.map_err(QueueUnavailable::new)?;
        }
        Ok(())
    }
}

/// The consumer is finished with the messages up to this number: it will deliver none of them, and waits for no acknowledgement
/// of one.
fn passed_by(consumer: &Info) -> u64 {
    match (consumer.num_ack_pending, consumer.num_pending) {
        (0, 0) => u64::MAX,
        (0, _) => consumer.delivered.stream_sequence,
        _ => consumer.ack_floor.stream_sequence,
    }
}
