//! Commit hints: the consumer tells the instance that holds the stream which reports are committed.
//!
//! They use core NATS, which may lose messages. A lost hint delays an acknowledgement by a second, until the instance
//! reads the watermark itself.

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::queue::{Committed, QueueUnavailable, payload};

/// Publishes hints, and subscribes to them.
#[derive(Clone, Debug)]
pub struct Hints(Client);

impl Hints {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    pub async fn publish(
        &self,
        instance: Uuid,
        committed: &Committed,
    ) -> Result<(), QueueUnavailable> {
        let payload = payload::encode_committed(committed);
        let sent = self.0.publish(subject(instance), payload.into()).await;
        sent.map_err(QueueUnavailable::new)
    }

    pub async fn subscribe(&self, instance: Uuid) -> Result<HintSubscription, QueueUnavailable> {
        let subscriber = self.0.subscribe(subject(instance)).await;
        subscriber
            .map(HintSubscription)
            .map_err(QueueUnavailable::new)
    }
}

/// The hints for one instance, until it is dropped.
#[derive(Debug)]
pub struct HintSubscription(Subscriber);

impl HintSubscription {
    /// The next hint. Never returns once the NATS client has ended.
    pub async fn next(&mut self) -> Committed {
        let Some(message) = self.0.next().await else {
            return std::future::pending().await;
        };
        payload::decode_committed(&message.payload).unwrap_or_else(|error| {
            tracing::debug!(%error, "a commit hint cannot be decoded");
            Committed::default()
        })
    }
}

fn subject(instance: Uuid) -> String {
    format!("svc.ingest.acked.{instance}")
}
