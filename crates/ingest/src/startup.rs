//! What must hold before the first agent connects: the database answers, its schema fits, and there is a signing key.
//! Whether it agrees with the keys of the live instances is decided when the lease is claimed.

mod schema;

use std::{path::Path, time::Duration};

use svc_pipeline::queue::{OpenError, Queue, QueueSettings};
use svc_store::{Store, StoreError};

use crate::{
    config::{Problems, Timing},
    error_chain::chain,
    signing::{self, SigningKey},
};

pub use schema::{
    owner, runtime_role, runtime_role_grant, schema, server, server_problem, web_role,
    web_role_grant,
};

const KEY_FILE: &str = "INGEST_JWT_KEY_FILE";
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Why an instance does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A person must fix something.
    #[error(transparent)]
    Problems(#[from] Problems),
    #[error(transparent)]
    KeyMismatch(#[from] KeyMismatch),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// This instance and a live sibling do not accept each other's JWTs. It is not one of the [`Problems`], which end the
/// process for good: the mismatch ends when the sibling is restarted with the right keys, so a later start may succeed.
#[derive(Debug, thiserror::Error)]
#[error(
    "INGEST_JWT_KEY_FILE: holds key {ours}, but the live instance on {hostname} signs with {theirs}: give all instances \
     the same key file, or, to change the key, follow the steps that `svc-ingest key rotate` prints"
)]
pub struct KeyMismatch {
    pub ours: String,
    pub theirs: String,
    pub hostname: String,
}

impl StartError {
    /// The error as the command line reports it.
    pub fn into_report(self) -> anyhow::Error {
        match self {
            Self::Problems(problems) => problems.into(),
            Self::KeyMismatch(mismatch) => mismatch.into(),
            Self::Store(error) => error.into(),
        }
    }

    /// Whether the database went away halfway, so that a retry helps.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable())
    }
}

/// Waits until the database answers, with one log line for each attempt.
pub async fn database(store: &Store) {
    let mut wait = Duration::from_millis(500);
    while let Err(error) = store.ping().await {
        let reason = chain(&error);
        tracing::warn!(reason, retry_in = ?wait, "waiting for the database");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Opens the metrics queue. It waits for NATS; what a person must fix is a problem.
pub async fn queue(settings: &QueueSettings) -> Result<Queue, StartError> {
    let opened = Queue::open(settings).await;
    opened.map_err(|error| {
        let variable = match error {
            OpenError::Credentials(..) => "INGEST_NATS_CREDS",
            _ => "INGEST_QUEUE_URL",
        };
        Problems::one(variable, chain(&error)).into()
    })
}

/// The key in the file, or a new one if no live sibling has another.
///
/// The danger is a fleet that is split between two keys. An instance links its key file into place before it
/// claims its lease. If a sibling's lease exists and the file is still missing when it is read a second time,
/// then this instance does not share its siblings' file, and must not make a key of its own.
pub async fn signing_key(path: &Path, store: &Store) -> Result<SigningKey, StartError> {
    if let Some(key) = read(path)? {
        return Ok(key);
    }
    let siblings = store.instances_live().await?;
    match (siblings.first(), read(path)?) {
        (_, Some(key)) => Ok(key),
        (None, None) => create(path),
        (Some(sibling), None) => {
            let message = format!(
                "{} does not exist, but the instance on {} is live with key {}: copy its key file here",
                path.display(),
                sibling.hostname,
                sibling.kid
            );
            Err(Problems::one(KEY_FILE, message).into())
        }
    }
}

/// How long the lease of a dead predecessor of this instance may still last.
pub fn lease_patience(timing: &Timing) -> Duration {
    timing.lease_ttl + timing.lease_renewal
}

fn read(path: &Path) -> Result<Option<SigningKey>, Problems> {
    signing::read(path).map_err(|error| Problems::one(KEY_FILE, error))
}

fn create(path: &Path) -> Result<SigningKey, StartError> {
    let key = signing::create(path).map_err(|error| Problems::one(KEY_FILE, error))?;
    tracing::info!(key.file = %path.display(), kid = key.kid(), "a new signing key was written: back it up");
    Ok(key)
}
