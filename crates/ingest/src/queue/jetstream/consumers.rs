//! The durable JetStream consumers, one for each shard.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{AckPolicy, Consumer, Info, pull},
    context::Context,
};

use super::{STREAM, subject};
use crate::queue::Unanswered;

/// How long a consumer may be silent about a message before another one gets it.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// Messages in consumers' hands at once, for each shard: over all processes.
const MAX_IN_HANDS: i64 = 20_000;

pub(super) fn name(shard: usize) -> String {
    format!("svc-ingest-{shard}")
}

/// The shard's consumer, made where it is missing.
pub(super) async fn open(
    context: &Context,
    shard: usize,
) -> Result<Consumer<pull::Config>, Unanswered> {
    let stream = context.get_stream_no_info(STREAM).await;
    let stream = stream.map_err(|error| Unanswered(error.into()))?;
    let (name, wanted) = (name(shard), settings(shard));
    let found = stream.get_or_create_consumer(&name, wanted).await;
    found.map_err(|error| Unanswered(error.into()))
}

pub(super) async fn info(context: &Context, shard: usize) -> Result<Info, Unanswered> {
    let stream = context.get_stream_no_info(STREAM).await;
    let stream = stream.map_err(|error| Unanswered(error.into()))?;
    let info = stream.consumer_info(name(shard)).await;
    info.map_err(|error| Unanswered(error.into()))
}

pub(super) fn settings(shard: usize) -> pull::Config {
    pull::Config {
        durable_name: Some(name(shard)),
        description: Some("svc-ingest: stores what is in this shard".into()),
        filter_subject: subject(shard),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: MAX_IN_HANDS,
        ..pull::Config::default()
    }
}
