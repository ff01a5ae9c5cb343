//! What was committed, told to the instance that holds the stream: by core NATS,
//! without a promise. A hint that is lost costs its stream a second, no more.

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::queue::{Committed, Unanswered, payload};

#[derive(Clone, Debug)]
pub struct Hints(Client);

impl Hints {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    pub async fn tell(&self, instance: Uuid, committed: &Committed) -> Result<(), Unanswered> {
        let payload = payload::encode_committed(committed);
        let told = self.0.publish(subject(instance), payload.into()).await;
        told.map_err(|error| Unanswered(error.into()))
    }

    pub async fn listen(&self, instance: Uuid) -> Result<Heard, Unanswered> {
        let heard = self.0.subscribe(subject(instance)).await;
        heard.map(Heard).map_err(|error| Unanswered(error.into()))
    }
}

/// What an instance is told, for as long as it listens.
#[derive(Debug)]
pub struct Heard(Subscriber);

impl Heard {
    /// The next hint; pending for ever once the client has ended.
    pub async fn next(&mut self) -> Committed {
        let Some(message) = self.0.next().await else {
            return std::future::pending().await;
        };
        payload::decode_committed(&message.payload).unwrap_or_else(|error| {
            tracing::warn!(%error, "a hint is not one of ours");
            Committed::default()
        })
    }
}

fn subject(instance: Uuid) -> String {
    format!("svc.ingest.acked.{instance}")
}
