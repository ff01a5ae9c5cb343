//! Schema migrations: forward only, in order, each applied once.
//!
//! Many instances may start at once. Each step is one transaction that takes an advisory
//! lock, finds the next migration, applies it and records it with its checksum. A released
//! migration is never edited; the checksum proves that. An unknown version comes from a newer
//! program and is accepted, because every change expands the schema first and contracts it
//! one release later.
//!
//! **The first version** is the files of `schema/`, in which every object is written once. A database whose first version
//! has another checksum was made by an unreleased program. Nothing leads from there to here, so it is refused.
//!
//! **The schema** is the connection's current one, `public` or another. Migrations are written for
//! `public`, and the name is replaced where they contain it ([`Migration::sql_in`]): in the search
//! path of functions that run with their owner's rights, and before a name.
//!
//! **A long reader must not stop the fleet.** ALTER TABLE waits for all transactions that use the
//! table, and later ones wait behind it. So a try waits at most [`TABLE_LOCK`] for a
//! table, then rolls back to a savepoint, which releases all locks on tables, and pauses. The
//! transaction keeps the advisory lock meanwhile, so that in the whole fleet only one instance
//! tries at a time; those that wait for the advisory lock hold no other.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use tokio::time::{Instant, sleep};

pub use crate::values::migration::Migration;
use crate::{
    pg::{error::SchemaError, tx::TxLimits},
    prelude::*,
    statements::locks,
};

/// A file of the first version.
macro_rules! schema {
    ($($theme:literal),+) => { concat!($(include_str!(concat!("../../schema/", $theme, ".sql"))),+) };
}

/// A migration and its file in `migrations/`.
macro_rules! migration {
    ($version:literal, $title:literal) => {
        Migration {
            version: $version,
            title: $title,
            sql: include_str!(concat!("../../migrations/", $title, ".sql")),
        }
    };
}

const BASELINE: Migration = Migration {
    version: FIRST,
    title: "0001_baseline",
    sql: schema!(
        "10_instances",
        "20_enrolment",
        "25_registration",
        "30_sessions",
        "35_keys",
        "40_samples",
        "50_history",
        "55_retention",
        "58_fleet",
        "60_readers",
        "65_people_events",
        "70_updates",
        "75_settings",
        "76_trust",
        "77_cells"
    ),
};

const FIRST: i32 = 1;

const MIGRATIONS: &[Migration] = &[BASELINE];

const CONSOLE_MIGRATIONS: &[Migration] = &[migration!(1, "console/0001_people")];

/// A schema with a history of its own: the table of the history and the statements that create it.
#[derive(Clone, Copy, Debug)]
struct History {
    /// `None`: in the connection's current schema.
    schema: Option<&'static str>,
    create: &'static str,
}

const SERVICE: History = History {
    schema: None,
    create: include_str!("../../migrations/schema_migrations.sql"),
};

/// The web console's schema, which the console itself migrates.
const CONSOLE: History = History {
    schema: Some("console"),
    create: include_str!("../../migrations/console/history.sql"),
};

const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(300),
    lock: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    deadline: Duration::from_secs(330),
};

/// How long a migration waits for a lock on a table, and all others behind it. Longer than PostgreSQL's
/// `deadlock_timeout` (1 s unless it was changed): only after that does an autovacuum of the table make way, and one of a
/// large table may take hours.
const TABLE_LOCK: Duration = Duration::from_millis(1500);

/// The seconds between tries, in which others use the table.
const PAUSES: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Where a migration names a schema, besides `public.` before a name.
const DEFINER_PATH: &str = "SET search_path = pg_catalog, public, pg_temp";

/// How long to retry while another process holds a lock that a migration needs.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// The migrations that this call applied.
    pub applied: Vec<String>,
    pub state: SchemaState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaState {
    Current,
    /// These migrations are not applied yet.
    Behind {
        missing: Vec<String>,
    },
    /// A newer program applied these. This program can use the schema.
    Ahead {
        unknown: Vec<String>,
    },
    /// This migration was applied with other contents. Nothing may build on it.
    Altered {
        migration: String,
    },
    /// The database was made by an unreleased program.
    Unreleased,
}

impl Store {
    /// Applies all missing migrations. Many instances may do so at once.
    pub async fn migrate(&self) -> Result<MigrationReport> {
        self.migrate_to(SERVICE, &self.migrations()).await
    }

    /// Applies all missing migrations of the web console's schema.
    pub async fn console_migrate(&self) -> Result<MigrationReport> {
        self.migrate_to(CONSOLE, CONSOLE_MIGRATIONS).await
    }

    /// The migrations of this program, and those of a later version that a test invents.
    fn migrations(&self) -> Vec<Migration> {
        [MIGRATIONS, self.later_migrations()].concat()
    }

    async fn migrate_to(&self, history: History, ours: &[Migration]) -> Result<MigrationReport> {
        let mut applied = Vec::new();
        let start = Instant::now();
        loop {
            match self.migrate_step(history, ours).await {
                Ok(Step::Applied(migration)) => applied.push(migration),
                Ok(Step::Done(state)) => return Ok(MigrationReport { applied, state }),
                Err(error) if is_locked(&error) && start.elapsed() < PATIENCE => {
                    tracing::warn!("waiting for a lock to change the database schema");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Compares the database's schema with this program's. Changes nothing.
    pub async fn schema_check(&self) -> Result<SchemaState> {
        self.run("schema_check", Watch, async |tx| {
            Ok(compare(&self.migrations(), &applied(&tx, SERVICE).await?))
        })
        .await
    }

    /// Compares the web console's schema with this program's. Changes nothing.
    pub async fn console_schema_check(&self) -> Result<SchemaState> {
        self.run("schema_check", Watch, async |tx| {
            Ok(compare(CONSOLE_MIGRATIONS, &applied(&tx, CONSOLE).await?))
        })
        .await
    }

    async fn migrate_step(&self, history: History, ours: &[Migration]) -> Result<Step> {
        self.run_within("migrate", Maintenance, &LIMITS, async |tx| {
            prepare(&tx, history).await?;
            match compare(ours, &applied(&tx, history).await?) {
                SchemaState::Behind { missing } => apply_first(&tx, history, ours, &missing).await,
                SchemaState::Altered { migration } => {
                    Err(StoreError::Schema(SchemaError::Altered { migration }))
                }
                SchemaState::Unreleased => Err(StoreError::Schema(SchemaError::Unreleased)),
                state => Ok(Step::Done(state)),
            }
        })
        .await
    }
}

enum Step {
    Applied(String),
    Done(SchemaState),
}

/// The applied migrations in the database: version → (name, checksum).
type Applied = BTreeMap<i32, (String, String)>;

impl History {
    fn table(self) -> String {
        let schema = self.schema.map(|schema| format!("{schema}."));
        format!("{}schema_migrations", schema.unwrap_or_default())
    }
}

impl Migration {
    fn name(&self) -> &'static str {
        self.title.split_once('_').map_or("", |(_, name)| name)
    }

    /// The statements, for a schema whose name is quoted.
    fn sql_in(&self, schema: &str) -> String {
        let path = format!("SET search_path = pg_catalog, {schema}, pg_temp");
        let sql = self.sql.replace(DEFINER_PATH, &path);
        sql.replace("public.", &format!("{schema}."))
    }

    fn checksum(&self) -> String {
        let digest = digest(&SHA256, self.sql.as_bytes());
        digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

async fn prepare(tx: &Tx, history: History) -> Result<()> {
    tx.lock(locks::SCHEMA).await?;
    if !has_history(tx, history).await? {
        tx.batch(history.create).await?;
    }
    Ok(())
}

async fn has_history(tx: &Tx, history: History) -> Result<bool> {
    let sql = "-- migrate
        SELECT to_regclass(quote_ident(coalesce($1, current_schema())) || '.schema_migrations') IS NOT NULL";
    let params = params![history.schema];
    tx.query_value(sql, &params).await
}

async fn applied(tx: &Tx, history: History) -> Result<Applied> {
    if !has_history(tx, history).await? {
        return Ok(Applied::new());
    }
    let table = history.table();
    let sql = format!("-- schema_check\nSELECT version, name, checksum FROM {table}");
    let rows = tx.query(&sql, &[]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?))))
        .collect()
}

fn compare(ours: &[Migration], applied: &Applied) -> SchemaState {
    let altered = ours.iter().find(|ours| {
        let theirs = applied.get(&ours.version);
        theirs.is_some_and(|(_, checksum)| *checksum != ours.checksum())
    });
    match altered {
        Some(ours) if ours.version == FIRST => return SchemaState::Unreleased,
        Some(ours) => {
            let migration = ours.title.to_owned();
            return SchemaState::Altered { migration };
        }
        None => {}
    }
    match (missing(ours, applied), unknown(ours, applied)) {
        (missing, _) if !missing.is_empty() => SchemaState::Behind { missing },
        (_, unknown) if !unknown.is_empty() => SchemaState::Ahead { unknown },
        _ => SchemaState::Current,
    }
}

fn missing(ours: &[Migration], applied: &Applied) -> Vec<String> {
    let missing = ours.iter().filter(|m| !applied.contains_key(&m.version));
    missing.map(|m| m.title.to_owned()).collect()
}

fn unknown(ours: &[Migration], applied: &Applied) -> Vec<String> {
    let known = |version| ours.iter().any(|m| m.version == version);
    let unknown = applied.iter().filter(|(version, _)| !known(**version));
    unknown
        .map(|(version, (name, _))| format!("{version:04}_{name}"))
        .collect()
}

async fn apply_first(
    tx: &Tx,
    history: History,
    ours: &[Migration],
    missing: &[String],
) -> Result<Step> {
    let is_first = |m: &&Migration| missing.first().is_some_and(|first| first == m.title);
    let Some(migration) = ours.iter().find(is_first) else {
        return Ok(Step::Done(SchemaState::Current));
    };
    let schema = "-- migrate\nSELECT quote_ident(current_schema())";
    let schema: String = tx.query_value(schema, &[]).await?;
    let outcome = apply(tx, migration, &migration.sql_in(&schema)).await;
    outcome.map_err(|error| failed(migration, error))?;
    record(tx, history, migration).await?;
    tracing::info!(migration = migration.title, "applied a schema migration");
    Ok(Step::Applied(migration.title.to_owned()))
}

/// Tries again after a pause while others use a table that the migration changes.
async fn apply(tx: &Tx, migration: &Migration, sql: &str) -> Result<()> {
    let limit = TABLE_LOCK.as_millis();
    let begin = format!("SET LOCAL lock_timeout = {limit}; SAVEPOINT migration");
    tx.batch(&begin).await?;
    for pause in PAUSES.map(Duration::from_secs) {
        match tx.batch(sql).await {
            Err(error) if is_locked(&error) => {
                tx.batch("ROLLBACK TO SAVEPOINT migration").await?;
                let migration = migration.title;
                tracing::warn!(migration, retry_in = ?pause, "a migration waits for the users of a table");
                sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
    tx.batch(sql).await
}

async fn record(tx: &Tx, history: History, migration: &Migration) -> Result<()> {
    let table = history.table();
    let sql = format!(
        "-- migrate
        INSERT INTO {table} (version, name, checksum) VALUES ($1, $2, $3)"
    );
    let checksum = migration.checksum();
    let params = params![migration.version, migration.name(), checksum];
    tx.execute(&sql, &params).await.map(drop)
}

/// Adds the migration's name if its own statements are at fault.
fn failed(migration: &Migration, error: StoreError) -> StoreError {
    let migration = migration.title.to_owned();
    match error {
        StoreError::Query(source) => StoreError::Schema(SchemaError::Failed { migration, source }),
        other => other,
    }
}

fn is_locked(error: &StoreError) -> bool {
    error.sqlstate() == Some("55P03")
}

#[cfg(test)]
mod tests;
