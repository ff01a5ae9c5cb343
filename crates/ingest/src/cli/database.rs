//! The database of the admin commands: DATABASE_URL alone, a schema that fits,
//! and errors in words.

use std::time::Duration;

use anyhow::bail;
use svc_store::{RefusalKind, SchemaState, Store, StoreError, StoreOptions, TxLimits};

use crate::config::Database;

/// A person waits longer than an agent, and may decide about thousands at once.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    deadline: Duration::from_secs(75),
};

/// Opens the database, and makes sure that what the commands ask for is there.
pub async fn open() -> anyhow::Result<Store> {
    let options = StoreOptions {
        pool_size: 3,
        limits: LIMITS,
        ..StoreOptions::default()
    };
    let store = Store::new(Database::from_env()?.url, options)?;
    match store.schema_check().await? {
        SchemaState::Current | SchemaState::Ahead { .. } => Ok(store),
        SchemaState::Behind { missing } => bail!(
            "the database's schema lacks {}: run `svc-ingest migrate`",
            missing.join(", ")
        ),
        SchemaState::Altered { migration, .. } => bail!(
            "the database's schema differs from this program's in {migration}: use the program that made it"
        ),
    }
}

/// One line: what our own rules say, or what the database's trouble is.
pub fn explain(error: &StoreError) -> String {
    let Some(refusal) = error.refusal() else {
        return explain_trouble(error);
    };
    match (refusal.kind, refusal.hint) {
        (RefusalKind::ModeMissing, _) => format!(
            "{}: say --replace (the same machine, reinstalled: the old agent is revoked) or --new-host (another machine)",
            refusal.message
        ),
        (_, Some(hint)) => format!("{}: {hint}", refusal.message),
        (_, None) => refusal.message.to_owned(),
    }
}

fn explain_trouble(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    match error.is_unavailable() {
        true => format!("{text} (check DATABASE_URL; `svc-ingest doctor` looks closer)"),
        false => text,
    }
}
