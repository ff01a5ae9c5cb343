//! The database connection of the admin commands, which need DATABASE_URL alone, and its errors as text.

use anyhow::bail;
use svc_common::error_chain::chain;
use svc_ingest::config::Database;
use svc_store::{RejectionKind, SchemaError, SchemaState, Store, StoreError, StoreOptions};

/// Opens the database, and fails unless its schema has everything that the commands use.
pub async fn open() -> anyhow::Result<Store> {
    let store = Store::new(Database::from_env()?.url, StoreOptions::for_commands())?;
    match store.schema_check().await? {
        SchemaState::Current | SchemaState::Ahead { .. } => Ok(store),
        SchemaState::Behind { missing } => bail!(
            "the database's schema lacks {}: run `svc-ingest migrate`",
            missing.join(", ")
        ),
        SchemaState::Altered { migration } => bail!(
            "the database's schema differs from this program's in {migration}: use the program that made it"
        ),
        SchemaState::Unreleased => bail!(SchemaError::Unreleased),
    }
}

/// One line: the rule that rejected the change, or the database's error.
pub fn explain(error: &StoreError) -> String {
    let Some(refusal) = error.rejection() else {
        return explain_failure(error);
    };
    match (refusal.kind, refusal.hint) {
        (RejectionKind::ModeMissing, _) => format!(
            "{}: add --replace (the same machine, reinstalled: the old agent is revoked) or --new-host (another machine)",
            refusal.message
        ),
        (_, Some(hint)) => format!("{}: {hint}", refusal.message),
        (_, None) => refusal.message.to_owned(),
    }
}

fn explain_failure(error: &StoreError) -> String {
    let text = chain(error);
    match error.is_unavailable() {
        true => format!("{text} (check DATABASE_URL, and run `svc-ingest doctor`)"),
        false => text,
    }
}
