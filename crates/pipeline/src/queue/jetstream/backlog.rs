//! The stream in which committed ranges wait for the receiver of the export, and its one durable consumer.
//!
//! A range that cannot be decoded is settled: a later version may have written it, and the export is not the place that
//! must not lose it.

use std::time::Duration;

use async_nats::{
    Subject,
    jetstream::{
        AckKind,
        consumer::{AckPolicy, Consumer, pull::Config},
        context::{Context, ContextBuilder},
        message::PublishMessage,
    },
};
use futures_util::future::join_all;
use svc_store::Range;
use tokio::time::timeout;
use uuid::Uuid;

use super::{BACKLOG, BACKLOG_SUBJECT, JetStream, OpenError, payload, pull, streams};
use crate::queue::{Origin, Parcel, QueueUnavailable};

const CONSUMER: &str = "svc-ingest-export";
/// Longer than the requests of one message take with all their repetitions. Messages that wait behind it are held.
const ACK_WAIT: Duration = Duration::from_mins(3);
/// After how long a message that was put back is delivered again.
const REDELIVERY_DELAY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most that one pull returns.
const MAX_MESSAGES: usize = 500;
/// Publishes in flight. They are counted apart from those of the queue, which must not wait for them.
const IN_FLIGHT: usize = 512;

#[derive(Clone, Debug)]
pub struct Backlog {
    context: Context,
    consumer: Option<Consumer<Config>>,
}

impl JetStream {
    pub fn backlog(&self) -> Backlog {
        let context = ContextBuilder::new()
            .timeout(TIMEOUT)
            .ack_timeout(TIMEOUT)
            .max_ack_inflight(IN_FLIGHT)
            .backpressure_on_inflight(true)
            .build(self.context.client());
        Backlog {
            context,
            consumer: None,
        }
    }
}

impl Backlog {
    /// Creates or verifies the stream.
    pub async fn open(&self) -> Result<(), OpenError> {
        streams::ensure_backlog(&self.context).await
    }

    /// Publishes ranges, and returns how many samples JetStream did not take.
    pub async fn publish(&self, ranges: &[Range]) -> usize {
        let published = join_all(ranges.iter().map(|range| self.publish_one(range))).await;
        let failed = ranges.iter().zip(published).filter(|(_, taken)| !taken);
        failed.map(|(range, _)| range.samples.len()).sum()
    }

    async fn publish_one(&self, range: &Range) -> bool {
        // The range is committed already, so no stream waits for its commit.
        let origin = Origin {
            epoch: 0,
            instance: Uuid::nil(),
        };
        let parcel = Parcel {
            range: range.clone(),
            origin,
        };
        let message = PublishMessage::build().payload(payload::encode(&parcel).into());
        let publish = async {
            let sent = self
                .context
                .send_publish(BACKLOG_SUBJECT, message)
                .await
                .ok()?;
            sent.await.ok()
        };
        timeout(TIMEOUT, publish)
            .await
            .is_ok_and(|taken| taken.is_some())
    }

    /// Waits up to a second for messages, and returns their ranges, each with what settles it. If it is dropped, messages
    /// that are on their way come again only when their time to be settled has passed.
    pub async fn pull(&mut self) -> Result<Vec<(Range, Subject)>, QueueUnavailable> {
        let pulled = self.pull_messages().await;
        let messages = pulled.inspect_err(|_| self.consumer = None)?;
        let mut waiting = Vec::with_capacity(messages.len());
        for message in messages {
            let Some(receipt) = message.reply.clone() else {
                continue;
            };
            match payload::decode(&message.payload) {
                Ok(parcel) => waiting.push((parcel.range, receipt)),
                Err(error) => {
                    tracing::warn!(%error, "a message of the export cannot be decoded");
                    self.settle(vec![receipt]).await;
                }
            }
        }
        Ok(waiting)
    }

    async fn pull_messages(
        &mut self,
    ) -> Result<Vec<async_nats::jetstream::Message>, QueueUnavailable> {
        let consumer = match &mut self.consumer {
            Some(consumer) => consumer,
            none => none.insert(open(&self.context).await?),
        };
        pull::next(consumer, MAX_MESSAGES).await
    }

    pub async fn settle(&self, receipts: Vec<Subject>) {
        self.answer(receipts, AckKind::Ack).await;
    }

    /// The messages are still waiting here: postpones their redelivery.
    pub async fn hold(&self, receipts: Vec<Subject>) {
        self.answer(receipts, AckKind::Progress).await;
    }

    pub async fn put_back(&self, receipts: Vec<Subject>) {
        self.answer(receipts, AckKind::Nak(Some(REDELIVERY_DELAY)))
            .await;
    }

    /// The answer may be lost: the message is then delivered again, and exported again with the same times and values.
    async fn answer(&self, receipts: Vec<Subject>, kind: AckKind) {
        let client = self.context.client();
        for receipt in receipts {
            drop(timeout(TIMEOUT, client.publish(receipt, kind.into())).await);
        }
    }
}

/// The consumer, created where it is missing.
async fn open(context: &Context) -> Result<Consumer<Config>, QueueUnavailable> {
    let stream = context.get_stream_no_info(BACKLOG).await;
    let stream = stream.map_err(QueueUnavailable::new)?;
    let settings = Config {
        durable_name: Some(CONSUMER.into()),
        description: Some("svc-ingest: sends to the receiver of the export".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        ..Config::default()
    };
    let found = stream.get_or_create_consumer(CONSUMER, settings).await;
    found.map_err(QueueUnavailable::new)
}
