//! Schema migrations: each applied once, verified by checksum, and documented.

use anyhow::Result;
use svc_store::{SchemaError, SchemaState, StoreError};
use tokio::task::JoinSet;

use crate::support::*;

#[tokio::test]
async fn eight_instances_migrate_at_once_and_each_step_happens_once() -> Result<()> {
    let store = empty().await?;
    let behind = store.schema_check().await?;
    let SchemaState::Behind { missing } = behind else {
        panic!("an empty database is {behind:?}");
    };
    assert_eq!(missing.first().map(String::as_str), Some("0001_baseline"));
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
async fn a_database_of_an_unreleased_version_is_refused_and_left_alone() -> Result<()> {
    let store = migrated().await?;
    let unreleased = "
        UPDATE schema_migrations SET name = 'instances', checksum = 'x' WHERE version = 1;
        INSERT INTO schema_migrations VALUES (2, 'enrolment', 'y')";
    store.sql(unreleased).await?;
    assert_eq!(store.schema_check().await?, SchemaState::Unreleased);
    let error = store.migrate().await.unwrap_err();
    let expected = matches!(error, StoreError::Schema(SchemaError::Unreleased));
    assert!(expected, "{error:?}");
    let versions = "SELECT max(version) FROM schema_migrations";
    assert_eq!(store.sql(versions).await?, "2");
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
    assert!(chain.contains("migration 0001_baseline failed"), "{chain}");
    let table = "SELECT to_regclass('schema_migrations')";
    assert_eq!(store.sql(table).await?, "");
    Ok(())
}

#[tokio::test]
async fn every_table_column_and_function_has_a_comment() -> Result<()> {
    let store = migrated().await?;
    let sql = "
        SELECT string_agg(object, ', ')
          FROM (SELECT 'pg_class'::regclass AS class, oid, relname AS object, 0 AS attnum FROM pg_class
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                 UNION ALL
                SELECT 'pg_class'::regclass, c.oid, relname || '.' || attname, a.attnum FROM pg_class c
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                 UNION ALL
                SELECT 'pg_proc'::regclass, oid, proname, 0 FROM pg_proc
                 WHERE pronamespace = 'public'::regnamespace
                   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = pg_proc.oid AND d.deptype = 'e')
               ) objects
         WHERE NOT EXISTS (SELECT FROM pg_description
                            WHERE objoid = oid AND objsubid = attnum AND classoid = class AND description <> '')";
    assert_eq!(store.sql(sql).await?, "", "objects without a comment");
    let tables = "SELECT count(*) FROM pg_class
                   WHERE relname IN ('schema_migrations', 'ingest_instances')
                     AND relnamespace = 'public'::regnamespace AND relkind = 'r'";
    assert_eq!(store.sql(tables).await?, "2");
    Ok(())
}
