//! The durable JetStream consumers, one for each shard.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{AckPolicy, Consumer, Info, pull},
    context::Context,
    stream::Stream,
};

use super::{STREAM, subject};
use crate::queue::QueueUnavailable;

/// How long a consumer may process a message before JetStream delivers it to another one.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// Delivered but unsettled messages of a shard, over all processes.
const MAX_ACK_PENDING: i64 = 20_000;

pub(super) fn name(shard: usize) -> String {
    format!("svc-ingest-{shard}")
}

/// The shard's consumer, created where it is missing.
pub(super) async fn open(
    context: &Context,
    shard: usize,
) -> Result<Consumer<pull::Config>, QueueUnavailable> {
    let (stream, name) = (stream(context).await?, name(shard));
    let found = stream.get_or_create_consumer(&name, settings(shard));
    found.await.map_err(QueueUnavailable::new)
}

pub(super) async fn info(context: &Context, shard: usize) -> Result<Info, QueueUnavailable> {
    let info = stream(context).await?.consumer_info(name(shard)).await;
    info.map_err(QueueUnavailable::new)
}

pub(super) async fn stream(context: &Context) -> Result<Stream<()>, QueueUnavailable> {
    let stream = context.get_stream_no_info(STREAM).await;
    stream.map_err(QueueUnavailable::new)
}

pub(super) fn settings(shard: usize) -> pull::Config {
    pull::Config {
        durable_name: Some(name(shard)),
        description: Some("svc-ingest: stores what is in this shard".into()),
        filter_subject: subject(shard),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    }
}
