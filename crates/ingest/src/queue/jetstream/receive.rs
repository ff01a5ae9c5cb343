//! Taking messages out of a shard: one pull at a time, bounded in messages and
//! bytes, and nothing asked for that nobody waits for. A pull that is given up
//! half way would hold its messages back until they are delivered again.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_nats::Subject;
use async_nats::jetstream::{
    AckKind, Message as Delivered,
    consumer::{Consumer, pull},
    context::Context,
    message::PublishMessage,
};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{consumers, dead_subject, message_id, payload};
use crate::queue::{Batch, Delivery, Handle, Parcel, Receipt, Unanswered, shard_of};

/// How long a pull waits for a first message.
const WAIT: Duration = Duration::from_secs(1);
/// For every word to NATS that needs no answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two messages of a pull: a server that is silent for longer has forgotten it.
const SILENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(500);
/// How long a message stays away that was put back.
const AWAY: Duration = Duration::from_millis(250);
/// What a pull brings at most; larger than any one message.
const MAX_BYTES: usize = 2 << 20;
/// The header of a dead letter that says why it is one.
const REASON: &str = "Svc-Ingest-Reason";

#[derive(Debug)]
pub struct Receiver {
    context: Arc<Context>,
    shard: usize,
    consumer: Option<Box<Consumer<pull::Config>>>,
}

/// What is owed to JetStream for a message, and where.
#[derive(Debug)]
pub struct Acknowledger {
    context: Arc<Context>,
    reply: Option<Subject>,
}

impl Receiver {
    pub(super) fn new(context: Arc<Context>, shard: usize) -> Self {
        Self {
            context,
            shard,
            consumer: None,
        }
    }

    pub async fn batch(&mut self, most: Batch) -> Vec<Delivery> {
        match self.pull(most).await {
            Ok(messages) => self.open_all(messages).await,
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::from(error));
                tracing::debug!(shard = self.shard, reason, "NATS gives no messages");
                self.consumer = None; // It may have been deleted: it is made anew.
                tokio::time::sleep(RETRY).await;
                Vec::new()
            }
        }
    }

    /// Waits for one message, and takes what else is there.
    async fn pull(&mut self, most: Batch) -> Result<Vec<Delivered>, Unanswered> {
        let consumer = match &mut self.consumer {
            Some(consumer) => consumer,
            none => none.insert(Box::new(consumers::open(&self.context, self.shard).await?)),
        };
        let first = consumer.batch().max_messages(1).expires(WAIT).messages();
        let mut messages = gather(first.await).await?;
        if !messages.is_empty() {
            let rest = consumer
                .fetch()
                .max_messages(most.ranges.saturating_sub(1).max(1))
                .max_bytes(MAX_BYTES)
                .messages();
            messages.extend(gather(rest.await).await?);
        }
        Ok(messages)
    }

    async fn open_all(&self, messages: Vec<Delivered>) -> Vec<Delivery> {
        let mut deliveries = Vec::with_capacity(messages.len());
        for message in messages {
            deliveries.extend(self.open(message).await);
        }
        deliveries
    }

    /// What is not a message of ours has no numbers to record: it is buried as it is.
    async fn open(&self, message: Delivered) -> Option<Delivery> {
        let (since, again) = message.info().map_or((SystemTime::now(), false), |info| {
            (info.published.into(), info.delivered > 1)
        });
        let owed = Acknowledger {
            context: self.context.clone(),
            reply: message.reply.clone(),
        };
        match payload::decode(&message.payload) {
            Ok(parcel) => {
                let receipt = Receipt {
                    since,
                    again,
                    handle: Handle::JetStream(owed),
                };
                Some(Delivery { parcel, receipt })
            }
            Err(error) => {
                tracing::error!(shard = self.shard, %error, "a message is not one of ours: it is a dead letter");
                let buried = PublishMessage::build()
                    .header(REASON, error.to_string().as_str())
                    .payload(message.payload.clone());
                if owed.publish(self.shard, buried).await.is_ok() {
                    owed.settle().await;
                }
                None
            }
        }
    }
}

/// All messages of one pull. What came before an error is kept.
async fn gather(pull: Result<pull::Batch, pull::BatchError>) -> Result<Vec<Delivered>, Unanswered> {
    let mut pull = pull.map_err(|error| Unanswered(error.into()))?;
    let mut messages = Vec::new();
    while let Ok(Some(next)) = timeout(SILENCE, pull.next()).await {
        match next {
            Ok(message) => messages.push(message),
            Err(error) if messages.is_empty() => return Err(Unanswered(error)),
            Err(_) => break,
        }
    }
    Ok(messages)
}

impl Acknowledger {
    pub async fn settle(self) {
        self.say(AckKind::Ack).await;
    }

    pub async fn put_back(self) {
        self.say(AckKind::Nak(Some(AWAY))).await;
    }

    pub async fn hold(&self) {
        self.say(AckKind::Progress).await;
    }

    /// Nothing depends on its arrival: what was not settled is delivered again, and
    /// is found to be stored.
    async fn say(&self, kind: AckKind) {
        if let Some(reply) = self.reply.clone() {
            let client = self.context.client();
            drop(timeout(PATIENCE, client.publish(reply, kind.into())).await);
        }
    }

    pub async fn bury(&self, parcel: &Parcel, reason: &str) -> Result<(), Unanswered> {
        let buried = PublishMessage::build()
            .message_id(message_id(parcel))
            .header(REASON, reason)
            .payload(payload::encode(parcel).into());
        let shard = shard_of(parcel.range.agent_id);
        self.publish(shard, buried).await
    }

    async fn publish(&self, shard: usize, message: PublishMessage) -> Result<(), Unanswered> {
        let sent = self
            .context
            .send_publish(dead_subject(shard), message)
            .await;
        let sent = sent.map_err(|error| Unanswered(error.into()))?;
        sent.await.map_err(|error| Unanswered(error.into()))?;
        Ok(())
    }
}
