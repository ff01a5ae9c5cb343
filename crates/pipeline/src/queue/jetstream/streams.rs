//! The two streams and the consumers: created where they are missing, verified where they exist, never altered.
//!
//! Only the settings that the queue's guarantees depend on are verified. Sizes, ages, replicas and placement belong to
//! the administrator, who may create the streams beforehand or change them later.

use std::time::Duration;

use async_nats::jetstream::{
    ErrorCode,
    context::{Context, CreateStreamErrorKind, GetStreamErrorKind},
    stream::{Config, DiscardPolicy, RetentionPolicy, StorageType},
};

use super::{BACKLOG, BACKLOG_SUBJECT, DEAD_LETTERS, STREAM, consumers};
use crate::queue::{QueueUnavailable, SHARDS};

/// A report has at most 256 KiB on its way from the agent. Its message repeats what the report only refers to.
pub(super) const MIN_PAYLOAD: usize = 512 << 10;
/// The default size of the stream; the administrator may choose another.
const MAX_BYTES: i64 = 1 << 30;
/// After a day no heartbeat stream waits for a report any more; its agent still has the samples.
const MAX_AGE: Duration = Duration::from_hours(24);
/// How long JetStream remembers message ids. Failed publishes are retried at once.
const DUPLICATES: Duration = Duration::from_mins(2);
const DEAD_BYTES: i64 = 256 << 20;
const DEAD_AGE: Duration = Duration::from_hours(24 * 30);

/// Why the queue cannot be opened. All but [`OpenError::Unavailable`] need an administrator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("NATS does not answer")]
    Unavailable(#[source] async_nats::Error),
    #[error("{0} cannot be read")]
    Credentials(String, #[source] std::io::Error),
    #[error(
        "NATS accepts messages of {limit} bytes at most: set max_payload to {MIN_PAYLOAD} or more in the server's settings"
    )]
    Payload { limit: usize },
    #[error("stream {stream}: {difference}; change it, or delete it")]
    Different {
        stream: &'static str,
        difference: String,
    },
    #[error("JetStream refuses stream {stream}: {reason}")]
    Refused {
        stream: &'static str,
        reason: String,
    },
}

impl From<QueueUnavailable> for OpenError {
    fn from(QueueUnavailable(error): QueueUnavailable) -> Self {
        Self::Unavailable(error)
    }
}

/// Creates or verifies both streams and the consumer of each shard.
pub(super) async fn ensure(context: &Context) -> Result<(), OpenError> {
    ensure_stream(context, STREAM, metrics()).await?;
    ensure_stream(context, DEAD_LETTERS, dead_letters()).await?;
    for shard in 0..SHARDS {
        let found = consumers::open(context, shard).await?;
        verify_consumer(shard, &found.cached_info().config)?;
    }
    Ok(())
}

/// Creates or verifies the stream of the export.
pub(super) async fn ensure_backlog(context: &Context) -> Result<(), OpenError> {
    ensure_stream(context, BACKLOG, backlog()).await
}

async fn ensure_stream(
    context: &Context,
    name: &'static str,
    wanted: Config,
) -> Result<(), OpenError> {
    let found = match find(context, name).await? {
        Some(found) => found,
        None => create(context, name, &wanted).await?,
    };
    verify(name, &wanted, &found)
}

/// Whether the stream of the queue exists, with the settings that we need.
pub(super) async fn check(context: &Context) -> Result<bool, OpenError> {
    match find(context, STREAM).await? {
        None => Ok(false),
        Some(found) => verify(STREAM, &metrics(), &found).map(|()| true),
    }
}

async fn find(context: &Context, name: &str) -> Result<Option<Config>, QueueUnavailable> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(refused)
                if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(QueueUnavailable::new(error)),
        },
    }
}

/// Several processes may create the same stream at once: JetStream makes one.
async fn create(
    context: &Context,
    name: &'static str,
    wanted: &Config,
) -> Result<Config, OpenError> {
    match context.create_stream(wanted.clone()).await {
        Ok(stream) => {
            tracing::info!(stream = name, "created a JetStream stream");
            Ok(stream.cached_info().config.clone())
        }
        Err(error) => match error.kind() {
            CreateStreamErrorKind::JetStream(refused) => Err(OpenError::Refused {
                stream: name,
                reason: refused.to_string(),
            }),
            _ => Err(QueueUnavailable::new(error).into()),
        },
    }
}

/// Interest retention: JetStream removes a message when every consumer has settled it. Stored samples take no space,
/// and other programs may add consumers of their own.
fn metrics() -> Config {
    Config {
        name: STREAM.into(),
        description: Some("svc-ingest: samples on their way to the database".into()),
        subjects: vec!["svc.ingest.metrics.*".into()],
        retention: RetentionPolicy::Interest,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        max_bytes: MAX_BYTES,
        max_age: MAX_AGE,
        duplicate_window: DUPLICATES,
        num_replicas: 1,
        ..Config::default()
    }
}

fn dead_letters() -> Config {
    Config {
        name: DEAD_LETTERS.into(),
        description: Some("svc-ingest: samples that the database refuses".into()),
        subjects: vec!["svc.ingest.dead.*".into()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        max_bytes: DEAD_BYTES,
        max_age: DEAD_AGE,
        duplicate_window: DUPLICATES,
        num_replicas: 1,
        ..Config::default()
    }
}

/// A message goes when it is exported, or when newer ones need its room.
fn backlog() -> Config {
    Config {
        name: BACKLOG.into(),
        description: Some("svc-ingest: samples on their way to the receiver of the export".into()),
        subjects: vec![BACKLOG_SUBJECT.into()],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        max_bytes: MAX_BYTES,
        max_age: MAX_AGE,
        duplicate_window: DUPLICATES,
        num_replicas: 1,
        ..Config::default()
    }
}

/// Reports the first setting that breaks a guarantee of the queue.
fn verify(stream: &'static str, wanted: &Config, found: &Config) -> Result<(), OpenError> {
    let different = |difference| Err(OpenError::Different { stream, difference });
    let settings = |config: &Config| {
        [
            ("list of subjects", format!("{:?}", config.subjects)),
            ("retention", format!("{:?}", config.retention)),
            ("storage", format!("{:?}", config.storage)),
            ("discard policy", format!("{:?}", config.discard)),
            ("no_ack", format!("{:?}", config.no_ack)),
        ]
    };
    for ((setting, found), (_, wanted)) in settings(found).into_iter().zip(settings(wanted)) {
        if found != wanted {
            return different(format!("its {setting} is {found} and must be {wanted}"));
        }
    }
    if found.max_bytes <= 0 {
        return different("its max_bytes is unlimited and must be a bound".into());
    }
    Ok(())
}

fn verify_consumer(
    shard: usize,
    found: &async_nats::jetstream::consumer::Config,
) -> Result<(), OpenError> {
    let wanted = consumers::settings(shard);
    let difference = if found.filter_subject != wanted.filter_subject {
        let (found, wanted) = (&found.filter_subject, &wanted.filter_subject);
        format!("takes {found:?} and must take {wanted:?}")
    } else if found.ack_policy != wanted.ack_policy {
        let (found, wanted) = (found.ack_policy, wanted.ack_policy);
        format!("has acknowledgements {found:?} and must have {wanted:?}")
    } else if found.max_deliver > 0 {
        "gives up after max_deliver and must not".into()
    } else {
        return Ok(());
    };
    Err(OpenError::Different {
        stream: STREAM,
        difference: format!("its consumer {} {difference}", consumers::name(shard)),
    })
}
