//! Pulling messages from a consumer of JetStream, bounded in messages and bytes.
//!
//! A pull is read to its end. JetStream assigns messages to a pull when it sends them: if a pull were dropped half way, its
//! messages would reach no consumer until their redelivery timeout has passed.

use std::time::Duration;

use async_nats::jetstream::{
    Message,
    consumer::{
        Consumer,
        pull::{Batch, BatchError, Config},
    },
};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::queue::QueueUnavailable;

/// How long a pull waits for a first message.
const WAIT: Duration = Duration::from_secs(1);
/// Between two messages of a pull. A server that pauses for longer has forgotten the pull.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most that one pull returns. Larger than any single message.
const MAX_BYTES: usize = 2 << 20;

/// Waits for one message, then takes those that are available. If that fails, the first message is kept.
pub(super) async fn next(
    consumer: &Consumer<Config>,
    most: usize,
) -> Result<Vec<Message>, QueueUnavailable> {
    let first = consumer.batch().max_messages(1).expires(WAIT).messages();
    let mut messages = gather(first.await).await?;
    if !messages.is_empty() && most > 1 {
        messages.extend(available(consumer, most - 1).await.unwrap_or_default());
    }
    Ok(messages)
}

/// Waits for none.
pub(super) async fn available(
    consumer: &Consumer<Config>,
    most: usize,
) -> Result<Vec<Message>, QueueUnavailable> {
    let pull = consumer
        .fetch()
        .max_messages(most)
        .max_bytes(MAX_BYTES)
        .messages();
    gather(pull.await).await
}

/// All messages of one pull. An error ends the pull, and the messages before it are kept.
async fn gather(pull: Result<Batch, BatchError>) -> Result<Vec<Message>, QueueUnavailable> {
    let mut pull = pull.map_err(QueueUnavailable::new)?;
    let mut messages = Vec::new();
    while let Ok(Some(next)) = timeout(MESSAGE_TIMEOUT, pull.next()).await {
        match next {
            Ok(message) => messages.push(message),
            Err(error) if messages.is_empty() => return Err(QueueUnavailable(error)),
            Err(_) => break,
        }
    }
    Ok(messages)
}
