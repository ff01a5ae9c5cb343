//! The texts of the migrations, and a migration that has to wait for a reader.

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions, TestDatabase, becomes, query, test_database};

use super::*;
use crate::{DatabaseUrl, StoreOptions};

/// Tables that grow with the number of samples and events.
const LARGE: [&str; 5] = [
    "samples_open",
    "sample_chunks",
    "host_rollups",
    "metric_gaps",
    "agent_events",
];

/// The text without comments, with single spaces.
fn text(migration: &Migration) -> String {
    let code = migration.sql.lines();
    let code = code.filter(|line| !line.trim_start().starts_with("--"));
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

#[test]
fn versions_increase_and_titles_begin_with_them() {
    let mut last = 0;
    for Migration { version, title, .. } in MIGRATIONS {
        assert!(*version > last, "{title}");
        assert!(title.starts_with(&format!("{version:04}_")), "{title}");
        last = *version;
    }
}

/// Databases have the checksums of the migrations that made them, and refuse a program with others.
#[test]
fn no_migration_has_changed_since_it_landed() {
    let landed = include_str!("../../../migrations/SHA256SUMS");
    let landed: Vec<&str> = landed.lines().collect();
    let line = |m: &Migration| format!("{}  {}.sql", m.checksum(), m.title);
    let ours = MIGRATIONS.iter().chain(CONSOLE_MIGRATIONS).map(line);
    for ours in ours {
        assert!(
            landed.contains(&ours.as_str()),
            "SHA256SUMS has no line {ours:?}. Leave a migration that has landed as it was, and write a new one. \
             Add the line of a new one."
        );
    }
}

#[test]
fn a_migration_does_not_control_the_transaction() {
    for migration in MIGRATIONS.iter().chain(CONSOLE_MIGRATIONS) {
        let sql = migration.sql.to_uppercase();
        let ends = |line: &str| matches!(line, "BEGIN;" | "COMMIT;" | "ROLLBACK;");
        assert!(!sql.lines().map(str::trim).any(ends));
    }
}

/// A search path without the phrase that `sql_in` replaces would name the wrong schema.
#[test]
fn a_migration_names_the_schema_only_where_the_name_is_replaced() {
    for migration in MIGRATIONS {
        let text = text(migration);
        let title = migration.title;
        for after in text.split("SECURITY DEFINER ").skip(1) {
            assert!(after.starts_with(DEFINER_PATH), "{title}: {after:.80}");
        }
        let elsewhere = text.replace(DEFINER_PATH, "");
        for name in ["search_path", "'public'"] {
            assert!(!elsewhere.contains(name), "{title} names {name}");
        }
    }
}

/// Building an index locks out writers. A large table needs CREATE INDEX CONCURRENTLY, which
/// cannot run inside the transaction of a migration.
#[test]
fn no_migration_builds_an_index_on_a_large_table() {
    for migration in MIGRATIONS.iter().filter(|m| m.version > FIRST) {
        let text = text(migration);
        for index in text.split("INDEX ").skip(1) {
            let table = index
                .split(" ON ")
                .nth(1)
                .and_then(|on| on.split(' ').next());
            let large = table.is_some_and(|table| LARGE.contains(&table));
            assert!(!large, "{}: {index:.80}", migration.title);
        }
    }
}

async fn migrated() -> Result<(TestDatabase, Store)> {
    let migrate = async |url: String| {
        open(&url)?.migrate().await?;
        Ok(())
    };
    let database = test_database("migrate_migrated", migrate).await?;
    let store = open(database.url())?;
    Ok((database, store))
}

fn open(url: &str) -> Result<Store> {
    let url = DatabaseUrl::parse(url)?;
    Ok(Store::new(url, StoreOptions::default())?)
}

/// A migration that runs this.
fn probe(sql: &'static str) -> Migration {
    Migration {
        version: 9999,
        title: "9999_probe",
        sql,
    }
}

/// The files in the order of their names are the first version: `cat schema/*.sql` is its text.
#[test]
fn the_first_version_is_the_folder_of_the_schema() -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/schema");
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<Result<Vec<_>>>()?;
    files.sort();
    let texts = files.iter().map(std::fs::read_to_string);
    let text = texts.collect::<Result<String, _>>()?;
    let same = text == BASELINE.sql;
    assert!(same, "schema! in migrate.rs lists {files:?}");
    Ok(())
}

fn applied_as(checksums: [(i32, &str); 2]) -> Applied {
    let entry = |(version, checksum): (i32, &str)| (version, (String::new(), checksum.to_owned()));
    checksums.map(entry).into()
}

#[test]
fn an_altered_migration_is_named_and_an_altered_first_version_is_an_unreleased_one() {
    let next = Migration {
        version: 2,
        title: "0002_next",
        sql: "SELECT 1",
    };
    let ours = [BASELINE, next];
    let compare =
        |first: &str, second: &str| compare(&ours, &applied_as([(1, first), (2, second)]));
    let [first, second] = ours.map(|migration| migration.checksum());
    assert_eq!(compare(&first, &second), SchemaState::Current);
    let migration = "0002_next".to_owned();
    assert_eq!(compare(&first, "x"), SchemaState::Altered { migration });
    assert_eq!(compare("x", &second), SchemaState::Unreleased);
}

/// An ALTER TABLE that waits for a reader would make every other reader wait too.
#[tokio::test(flavor = "multi_thread")]
async fn others_use_a_table_while_a_migration_waits_for_its_reader() -> Result<()> {
    let (database, store) = migrated().await?;
    let next = probe("ALTER TABLE agents ADD COLUMN probe text");
    let (reader, connection) =
        tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let read = "BEGIN; SELECT count(*) FROM agents";
    reader.batch_execute(read).await?;
    let migrating = tokio::spawn(async move { store.migrate_to(SERVICE, &[next]).await });
    let waits = "SELECT count(*) > 0 FROM pg_locks
                  WHERE relation = 'agents'::regclass AND NOT granted AND mode = 'AccessExclusiveLock'";
    for _ in 0..2 {
        becomes(database.url(), waits, "t").await?;
        // Five seconds are three times as long as a try, and half as long as a careless one.
        for other in [
            "SELECT count(*) FROM agents",
            "UPDATE agents SET version = version",
        ] {
            let other = format!("SET lock_timeout = '5s'; {other}");
            query(database.url(), &other).await?;
        }
    }
    assert!(!migrating.is_finished());
    reader.batch_execute("COMMIT").await?;
    assert_eq!(migrating.await??.applied, ["9999_probe"]);
    query(database.url(), "SELECT probe FROM agents").await?;
    Ok(())
}

/// It would take minutes here, and takes hours on a large table. PostgreSQL counts only those that reach their end.
#[tokio::test(flavor = "multi_thread")]
async fn an_autovacuum_makes_way_for_a_migration() -> Result<()> {
    let slow = [
        ("autovacuum", "on"),
        ("autovacuum_naptime", "1s"),
        ("autovacuum_vacuum_cost_limit", "1"),
        ("autovacuum_vacuum_cost_delay", "100ms"),
    ];
    let postgres = Postgres::start(PostgresOptions {
        settings: slow.map(|(name, value)| (name.into(), value.into())).into(),
        ..PostgresOptions::default()
    })
    .await?;
    postgres.create_database("vacuumed", None).await?;
    let url = postgres.url("vacuumed");
    let table = "
        CREATE TABLE large AS SELECT repeat('x', 400) AS text FROM generate_series(1, 40000);
        DELETE FROM large";
    query(&url, table).await?;
    let store = open(&url)?;
    let vacuums =
        "SELECT count(*) > 0 FROM pg_stat_progress_vacuum WHERE relid = 'large'::regclass";
    becomes(&url, vacuums, "t").await?;
    let next = probe("ALTER TABLE large ADD COLUMN probe text");
    let report = store.migrate_to(SERVICE, &[next]).await?;
    assert_eq!(report.applied, ["9999_probe"]);
    let ended = "SELECT autovacuum_count FROM pg_stat_all_tables WHERE relname = 'large'";
    let ended = query(&url, ended).await?;
    assert_eq!(ended, "0", "it waited for the autovacuum");
    Ok(())
}
