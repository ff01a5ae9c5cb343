//! The schema: applied once, by whoever comes first, and documented.

use anyhow::Result;
use svc_store::{SchemaError, SchemaState, StoreError};

use crate::support::{batch, empty, migrated, open, options, text};

#[tokio::test]
async fn eight_instances_migrate_at_once_and_each_step_happens_once() -> Result<()> {
    let (database, store) = empty().await?;
    let behind = store.schema_check().await?;
    let SchemaState::Behind { missing } = behind else {
        panic!("an empty database is {behind:?}");
    };
    assert_eq!(missing.first().map(String::as_str), Some("0001_instances"));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = open(database.url(), options(3))?;
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
async fn an_altered_migration_is_detected_and_nothing_is_built_on_it() -> Result<()> {
    let (_database, store) = migrated().await?;
    batch(
        &store,
        "UPDATE schema_migrations SET checksum = 'x' WHERE version = 1",
    )
    .await?;
    let altered = SchemaState::Altered {
        version: 1,
        migration: "0001_instances".to_owned(),
    };
    assert_eq!(store.schema_check().await?, altered);
    let error = store.migrate().await.unwrap_err();
    assert!(matches!(
        error,
        StoreError::Schema(SchemaError::Altered { .. })
    ));
    Ok(())
}

#[tokio::test]
async fn a_newer_schema_is_fine() -> Result<()> {
    let (_database, store) = migrated().await?;
    let newer = "INSERT INTO schema_migrations VALUES (9000, 'later', 'x')";
    batch(&store, newer).await?;
    let unknown = vec!["9000_later".to_owned()];
    let ahead = SchemaState::Ahead { unknown };
    assert_eq!(store.schema_check().await?, ahead);
    assert_eq!(store.migrate().await?.state, ahead);
    Ok(())
}

#[tokio::test]
async fn a_migration_that_fails_is_named_and_leaves_nothing() -> Result<()> {
    let (_database, store) = empty().await?;
    batch(&store, "CREATE TABLE ingest_instances ()").await?;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P07"));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("migration 0001_instances failed"), "{chain}");
    let sql = "SELECT to_regclass('schema_migrations')::text";
    assert_eq!(text(&store, sql).await?, "");
    Ok(())
}

#[tokio::test]
async fn every_table_and_column_has_a_comment() -> Result<()> {
    let (_database, store) = migrated().await?;
    let sql = "
        SELECT string_agg(relname || coalesce('.' || attname, ''), ', ')
          FROM (SELECT oid, relname, 0 AS attnum, NULL AS attname FROM pg_class
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                 UNION ALL
                SELECT c.oid, relname, a.attnum, a.attname FROM pg_class c
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
               ) things
         WHERE NOT EXISTS (SELECT FROM pg_description
                            WHERE objoid = oid AND objsubid = attnum
                              AND classoid = 'pg_class'::regclass AND description <> '')";
    assert_eq!(text(&store, sql).await?, "", "without a comment");
    let tables = "SELECT count(*)::text FROM pg_class
                   WHERE relname IN ('schema_migrations', 'ingest_instances')
                     AND relnamespace = 'public'::regnamespace AND relkind = 'r'";
    assert_eq!(text(&store, tables).await?, "2");
    Ok(())
}
