//! Finds messages that a JetStream consumer skips, and repairs the stream.
//!
//! After a crash or a loss of power NATS may come back in two states in which it delivers nothing, without a word:
//!
//! - **The stream has lost its end.** NATS syncs messages and the state of consumers to disk at different moments. The
//!   stream may end below the number that a consumer has delivered last. New messages get numbers that the consumer
//!   believes to have delivered already.
//! - **The stream does not find its messages.** A consumer reads its messages through an index by subject. Where the
//!   index is wrong, the consumer finds none of its messages, and moves to the end of the stream past each new one.
//!
//! From outside, the first shows in the numbers alone, and both in a message that no consumer will deliver, or waits for.
//! A healthy stream looks like that for a moment: between an acknowledgement and the removal of its message, and in a
//! cluster while one node answers for the stream and another, further ahead, for a consumer. So both count only if two
//! checks in a row find them at the same first message. It is not read to see which shard it belongs to: a stream that
//! does not find its messages may refuse that too.
//!
//! The repair drops all messages and moves the stream's numbers beyond the consumer's: NATS then begins new files. Nobody
//! has acknowledged the dropped reports to an agent: [`super::JetStream::gone`] finds them lost, and agents send
//! them again. Several processes may repair at once. At worst one of them drops a report that came after the repair of
//! another, and it is sent again too.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{consumer::Info, context::Context, stream::State};

use super::{consumers, state};
use crate::queue::{QueueUnavailable, SHARDS};

/// How often to look, while nothing is delivered.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The checks of one shard.
#[derive(Debug)]
pub(super) struct SkipCheck {
    context: Arc<Context>,
    shard: usize,
    /// When the shard delivered a message, or was checked.
    healthy_at: Instant,
    /// The first message of the stream, if the last check found reports skipped.
    suspect: Option<u64>,
}

impl SkipCheck {
    pub(super) fn new(context: Arc<Context>, shard: usize) -> Self {
        Self {
            context,
            shard,
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
        if self.healthy_at.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        self.healthy_at = Instant::now();
        // Consumers are read before the stream: without a crash its last number only grows, so one that has all messages
        // cannot end below what was delivered earlier.
        let (mut delivered, mut passed) = (0, u64::MAX);
        for shard in 0..SHARDS {
            let consumer = consumers::info(&self.context, shard).await?;
            delivered = delivered.max(consumer.delivered.stream_sequence);
            passed = passed.min(passed_by(&consumer));
        }
        let state = state(&self.context).await?;
        let end_is_lost = delivered > state.last_sequence;
        let is_passed = state.messages > 0 && state.first_sequence <= passed;
        let found = (end_is_lost || is_passed).then_some(state.first_sequence);
        if found.is_some() && found == self.suspect {
            self.repair(&state, delivered).await?;
        }
        self.suspect = found;
        Ok(())
    }

    async fn repair(&mut self, state: &State, delivered: u64) -> Result<(), QueueUnavailable> {
        tracing::warn!(
            shard = self.shard,
            messages = state.messages,
            last = state.last_sequence,
            delivered,
            "NATS skips reports in its stream since a crash: dropping them, agents send them again"
        );
        let beyond = delivered.max(state.last_sequence) + 1;
        let stream = consumers::stream(&self.context).await?;
        let purged = stream.purge().sequence(beyond).await;
        purged.map(drop).map_err(QueueUnavailable::new)
    }
}

/// Of the messages up to this number the consumer will deliver none, and waits for none.
fn passed_by(consumer: &Info) -> u64 {
    match (consumer.num_ack_pending, consumer.num_pending) {
        (0, 0) => u64::MAX,
        (0, _) => consumer.delivered.stream_sequence,
        _ => consumer.ack_floor.stream_sequence,
    }
}
