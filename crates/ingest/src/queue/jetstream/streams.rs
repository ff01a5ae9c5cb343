//! The two streams and the consumers: made where they are missing, verified where
//! they are there, and never altered.
//!
//! Only what the queue's promises rest on is verified. Sizes, ages, replicas and
//! placement are the operator's: make the stream beforehand, or change it later.

use std::time::Duration;

use async_nats::jetstream::{
    ErrorCode,
    context::{Context, GetStreamErrorKind},
    stream::{Config, DiscardPolicy, RetentionPolicy, StorageType},
};

use super::{DEAD_LETTERS, STREAM, consumers};
use crate::queue::{SHARDS, Unanswered};

/// The stream's size by default; the operator may choose another.
const MAX_BYTES: i64 = 1 << 30;
/// Agents keep what was not acknowledged; what lies here for longer nobody waits for.
const MAX_AGE: Duration = Duration::from_hours(24);
/// Within this a repeated message id is a repetition. Publishes are repeated at once.
const DUPLICATES: Duration = Duration::from_mins(2);
const DEAD_BYTES: i64 = 256 << 20;
const DEAD_AGE: Duration = Duration::from_hours(24 * 30);

/// Why the queue cannot be opened: something that a person must mend.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("NATS does not answer")]
    Away(#[source] async_nats::Error),
    #[error("{0} cannot be read")]
    Credentials(String, #[source] std::io::Error),
    #[error("stream {stream}: {difference}; delete it, or make it so")]
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

pub(super) async fn ensure(context: &Context) -> Result<Result<(), Unanswered>, OpenError> {
    for (name, wanted) in [(STREAM, metrics()), (DEAD_LETTERS, dead_letters())] {
        match stream(context, name, &wanted).await? {
            Ok(()) => {}
            Err(unanswered) => return Ok(Err(unanswered)),
        }
    }
    for shard in 0..SHARDS {
        match consumers::open(context, shard).await {
            Ok(found) => verify_consumer(shard, &found.cached_info().config)?,
            Err(unanswered) => return Ok(Err(unanswered)),
        }
    }
    Ok(Ok(()))
}

/// Whether the stream of the queue is there, as it should be.
pub(super) async fn check(context: &Context) -> Result<Result<bool, Unanswered>, OpenError> {
    match find(context, STREAM).await {
        Err(unanswered) => Ok(Err(unanswered)),
        Ok(None) => Ok(Ok(false)),
        Ok(Some(found)) => verify(STREAM, &metrics(), &found).map(|()| Ok(true)),
    }
}

async fn stream(
    context: &Context,
    name: &'static str,
    wanted: &Config,
) -> Result<Result<(), Unanswered>, OpenError> {
    let found = match find(context, name).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => create(context, name, wanted).await?,
        Err(unanswered) => Err(unanswered),
    };
    match found {
        Ok(found) => verify(name, wanted, &found).map(Ok),
        Err(unanswered) => Ok(Err(unanswered)),
    }
}

async fn find(context: &Context, name: &str) -> Result<Option<Config>, Unanswered> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(refused)
                if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(Unanswered(error.into())),
        },
    }
}

/// Several may do so at once: the same stream made twice is one.
async fn create(
    context: &Context,
    name: &'static str,
    wanted: &Config,
) -> Result<Result<Config, Unanswered>, OpenError> {
    use async_nats::jetstream::context::CreateStreamErrorKind as Kind;
    match context.create_stream(wanted.clone()).await {
        Ok(stream) => {
            tracing::info!(stream = name, "a stream was made in JetStream");
            Ok(Ok(stream.cached_info().config.clone()))
        }
        Err(error) => match error.kind() {
            Kind::JetStream(refused) => Err(OpenError::Refused {
                stream: name,
                reason: refused.to_string(),
            }),
            _ => Ok(Err(Unanswered(error.into()))),
        },
    }
}

/// Interest: a message leaves when every consumer has settled it, so that what is
/// stored takes no room, and others may have consumers of their own.
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

/// The first thing that is not as the promises need it.
fn verify(stream: &'static str, wanted: &Config, found: &Config) -> Result<(), OpenError> {
    let is = |what: &str, found: &dyn std::fmt::Debug, wanted: &dyn std::fmt::Debug| {
        let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
        let same = found == wanted;
        (!same).then(|| format!("its {what} is {found} and must be {wanted}"))
    };
    let bounded = found.max_bytes > 0;
    let difference = is("list of subjects", &found.subjects, &wanted.subjects)
        .or_else(|| is("retention", &found.retention, &wanted.retention))
        .or_else(|| is("storage", &found.storage, &wanted.storage))
        .or_else(|| is("discard policy", &found.discard, &wanted.discard))
        .or_else(|| is("no_ack", &found.no_ack, &wanted.no_ack))
        .or_else(|| (!bounded).then(|| "its max_bytes is unlimited and must be a bound".into()));
    match difference {
        None => Ok(()),
        Some(difference) => Err(OpenError::Different { stream, difference }),
    }
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
