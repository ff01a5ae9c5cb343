//! Receiving messages of a shard, and answering JetStream for them.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subject,
    jetstream::{
        AckKind, Message as Delivered,
        consumer::{Consumer, pull::Config},
        context::Context,
        message::PublishMessage,
    },
};
use svc_common::error_chain::chain;
use tokio::time::timeout;

use super::{consumers, dead_subject, message_id, payload, pull, skipped::SkipCheck};
use crate::queue::{Batch, Delivery, Handle, Parcel, QueueUnavailable, Receipt, shard_of};

/// For publishes that need no response.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(500);
/// After how long a message that was put back is delivered again.
pub const REDELIVERY_DELAY: Duration = Duration::from_millis(250);
/// The header of a dead letter with the reason.
const REASON: &str = "Svc-Ingest-Reason";

/// The consumer's end of one shard.
#[derive(Debug)]
pub struct Receiver {
    context: Arc<Context>,
    shard: usize,
    consumer: Option<Box<Consumer<Config>>>,
    skip_check: SkipCheck,
}

/// Answers JetStream for one message.
#[derive(Debug)]
pub struct Acknowledger {
    context: Arc<Context>,
    reply: Option<Subject>,
}

impl Receiver {
    /// `skip_check`: how often to look for skipped messages.
    pub(super) fn new(context: Arc<Context>, shard: usize, skip_check: Duration) -> Self {
        Self {
            skip_check: SkipCheck::new(context.clone(), skip_check),
            context,
            shard,
            consumer: None,
        }
    }

    pub async fn batch(&mut self, most: Batch) -> Vec<Delivery> {
        let pulled = self.pull_and_check(most).await;
        self.opened(pulled).await
    }

    pub async fn available(&mut self, most: Batch) -> Vec<Delivery> {
        if most.ranges == 0 {
            return Vec::new();
        }
        let pulled = match self.consumer().await {
            Ok(consumer) => pull::available(consumer, most.ranges).await,
            Err(error) => Err(error),
        };
        self.opened(pulled).await
    }

    /// The deliveries of a pull. After a pull that failed it pauses.
    async fn opened(&mut self, pulled: Result<Vec<Delivered>, QueueUnavailable>) -> Vec<Delivery> {
        match pulled {
            Ok(messages) => self.open_all(messages).await,
            Err(error) => {
                let reason = chain(&error);
                tracing::debug!(shard = self.shard, reason, "NATS delivers no messages");
                self.consumer = None; // It may have been deleted: the next pull recreates it.
                tokio::time::sleep(RETRY).await;
                Vec::new()
            }
        }
    }

    async fn pull_and_check(&mut self, most: Batch) -> Result<Vec<Delivered>, QueueUnavailable> {
        let messages = pull::next(self.consumer().await?, most.ranges).await?;
        match messages.is_empty() {
            true => self.skip_check.idle().await?,
            false => self.skip_check.delivered(),
        }
        Ok(messages)
    }

    async fn consumer(&mut self) -> Result<&Consumer<Config>, QueueUnavailable> {
        Ok(match &mut self.consumer {
            Some(consumer) => consumer,
            none => none.insert(Box::new(consumers::open(&self.context, self.shard).await?)),
        })
    }

    async fn open_all(&self, messages: Vec<Delivered>) -> Vec<Delivery> {
        let mut deliveries = Vec::with_capacity(messages.len());
        for message in messages {
            deliveries.extend(self.open(message).await);
        }
        deliveries
    }

    /// Decodes a message. One that does not decode has no sequence numbers to record: it becomes a dead letter unchanged.
    async fn open(&self, message: Delivered) -> Option<Delivery> {
        let delivered = message.info().map_or(1, |info| info.delivered);
        let earlier = u32::try_from(delivered - 1).unwrap_or_default();
        let acknowledger = Acknowledger {
            context: self.context.clone(),
            reply: message.reply.clone(),
        };
        match payload::decode(&message.payload) {
            Ok(parcel) => {
                let receipt = Receipt {
                    earlier,
                    handle: Handle::JetStream(acknowledger),
                };
                Some(Delivery { parcel, receipt })
            }
            Err(error) => {
                tracing::error!(shard = self.shard, %error, "a message cannot be decoded: it becomes a dead letter");
                let letter = letter(&chain(&error)).payload(message.payload.clone());
                if acknowledger.publish(self.shard, letter).await.is_ok() {
                    acknowledger.settle().await;
                }
                None
            }
        }
    }
}

impl Acknowledger {
    pub async fn settle(self) {
        self.send(AckKind::Ack).await;
    }

    pub async fn put_back(self) {
        self.send(AckKind::Nak(Some(REDELIVERY_DELAY))).await;
    }

    pub async fn hold(&self) {
        self.send(AckKind::Progress).await;
    }

    /// The answer may be lost: JetStream then delivers the message again, and the watermark skips it.
    async fn send(&self, kind: AckKind) {
        if let Some(reply) = self.reply.clone() {
            let client = self.context.client();
            drop(timeout(SEND_TIMEOUT, client.publish(reply, kind.into())).await);
        }
    }

    pub async fn dead_letter(&self, parcel: &Parcel, reason: &str) -> Result<(), QueueUnavailable> {
        let letter = letter(reason)
            .message_id(message_id(parcel))
            .payload(payload::encode(parcel).into());
        let shard = shard_of(parcel.range.agent_id);
        self.publish(shard, letter).await
    }

    async fn publish(&self, shard: usize, message: PublishMessage) -> Result<(), QueueUnavailable> {
        let sent = self.context.send_publish(dead_subject(shard), message);
        let sent = sent.await.map_err(QueueUnavailable::new)?;
        sent.await.map_err(QueueUnavailable::new)?;
        Ok(())
    }
}

/// A dead letter. The client panics on a header with a line break.
fn letter(reason: &str) -> PublishMessage {
    let reason = reason.replace(char::is_control, " ");
    PublishMessage::build().header(REASON, reason)
}
