//! Schema migrations: each applied once, verified by checksum, and documented.

use anyhow::Result;
use svc_store::{SchemaError, SchemaState, StoreError};
use tokio::task::JoinSet;

use crate::support::{TestStore, empty, migrated};

#[tokio::test]
async fn eight_instances_migrate_at_once_and_each_step_happens_once() -> Result<()> {
    let store = empty().await?;
    let behind = store.schema_check().await?;
    let SchemaState::Behind { missing } = behind else {
        panic!("an empty database is {behind:?}");
    };
    assert_eq!(missing.first().map(String::as_str), Some("0001_instances"));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = TestStore::open(store.url(), 3)?;
        tasks.spawn(async move { store.migrate().await });
    }
    let mut applied = Vec::new();
    while let Some(report) = tasks.join_next().await {
        let report = report??;
        assert_eq!(report.state, SchemaState::Current);
        applied.extend(report.applied);
    }
    applied.sort();
    assert_eq!(applied, missing);
    assert_eq!(store.schema_check().await?, SchemaState::Current);
    Ok(())
}

#[tokio::test]
async fn an_altered_migration_is_detected_and_stops_the_migration() -> Result<()> {
    let store = migrated().await?;
    let alter = "UPDATE schema_migrations SET checksum = 'x' WHERE version = 1";
    store.sql(alter).await?;
    let altered = SchemaState::Altered {
        version: 1,
        migration: "0001_instances".to_owned(),
    };
    assert_eq!(store.schema_check().await?, altered);
    let error = store.migrate().await.unwrap_err();
    let expected = matches!(error, StoreError::Schema(SchemaError::Altered { .. }));
    assert!(expected, "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_newer_schema_is_accepted() -> Result<()> {
    let store = migrated().await?;
    let newer = "INSERT INTO schema_migrations VALUES (9000, 'later', 'x')";
    store.sql(newer).await?;
    let unknown = vec!["9000_later".to_owned()];
    let ahead = SchemaState::Ahead { unknown };
    assert_eq!(store.schema_check().await?, ahead);
    assert_eq!(store.migrate().await?.state, ahead);
    Ok(())
}

#[tokio::test]
async fn a_migration_that_fails_is_named_and_rolled_back() -> Result<()> {
    let store = empty().await?;
    store.sql("CREATE TABLE ingest_instances ()").await?;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P07"));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("migration 0001_instances failed"), "{chain}");
    let table = "SELECT to_regclass('schema_migrations')";
    assert_eq!(store.sql(table).await?, "");
    Ok(())
}

#[tokio::test]
async fn every_table_and_column_has_a_comment() -> Result<()> {
    let store = migrated().await?;
    let sql = "
        SELECT string_agg(relname || coalesce('.' || attname, ''), ', ')
          FROM (SELECT oid, relname, 0 AS attnum, NULL AS attname FROM pg_class
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                 UNION ALL
                SELECT c.oid, relname, a.attnum, a.attname FROM pg_class c
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
               ) objects
         WHERE NOT EXISTS (SELECT FROM pg_description
                            WHERE objoid = oid AND objsubid = attnum
                              AND classoid = 'pg_class'::regclass AND description <> '')";
    assert_eq!(store.sql(sql).await?, "", "objects without a comment");
    let tables = "SELECT count(*) FROM pg_class
                   WHERE relname IN ('schema_migrations', 'ingest_instances')
                     AND relnamespace = 'public'::regnamespace AND relkind = 'r'";
    assert_eq!(store.sql(tables).await?, "2");
    Ok(())
}
