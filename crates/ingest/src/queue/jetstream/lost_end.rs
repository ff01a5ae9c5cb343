//! Repairs a stream that a crash of NATS left behind its own consumers.
//!
//! NATS syncs messages and the state of consumers to disk at different moments. After a crash or a loss of power the
//! stream may end below the number that a consumer has delivered last. It then gives new messages numbers that the
//! consumer believes to have delivered already, and the consumer skips them without a word, for as many messages as were
//! lost.
//!
//! The repair moves the stream's numbers beyond the consumer's and drops what the stream has below: reports from
//! before the crash that no consumer would get, and new ones that it would skip. Nobody has acknowledged them to an agent,
//! [`super::JetStream::gone`] finds them lost, and agents send them again. Several processes may repair at once: all move
//! the stream to the same number, and later messages are above it.

use async_nats::jetstream::context::Context;

use super::{consumers, state};
use crate::queue::QueueUnavailable;

/// The consumer is read before the stream: without a crash the stream's last number only grows, so it cannot be below
/// what the consumer had delivered earlier.
pub(super) async fn repair(context: &Context, shard: usize) -> Result<(), QueueUnavailable> {
    let delivered = consumers::info(context, shard).await?.delivered;
    let last = state(context).await?.last_sequence;
    let beyond = delivered.stream_sequence + 1;
    if last + 1 >= beyond {
        return Ok(());
    }
    tracing::warn!(
        shard,
        last,
        delivered = delivered.stream_sequence,
        "NATS lost the end of its stream: moving it beyond what was delivered, agents send the rest again"
    );
    let stream = consumers::stream(context).await?;
    let purged = stream.purge().sequence(beyond).await;
    purged.map(drop).map_err(QueueUnavailable::new)
}
