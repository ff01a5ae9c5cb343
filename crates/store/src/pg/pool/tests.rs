//! Transactions and bulkheads against a real PostgreSQL.

mod faults;
mod replication;
mod transactions;

use anyhow::{Context, Result};
use prometheus_client::encoding::text::encode;
use svc_sandbox::{PgBouncer, TestDatabase, eventually, shared_postgres, test_database};
use tokio::task::JoinSet;
use tokio_postgres::types::Type;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// Limits that a slow machine does not reach.
const GENEROUS: TxLimits = TxLimits {
    statement: PATIENCE,
    lock: PATIENCE,
    idle: PATIENCE,
    deadline: Duration::from_secs(60),
};

fn options(pool_size: usize) -> StoreOptions {
    StoreOptions {
        pool_size,
        acquire: PATIENCE,
        later_migrations: &[],
        limits: GENEROUS,
    }
}

fn open(url: &str, options: StoreOptions) -> Result<Store> {
    Ok(Store::new(DatabaseUrl::parse(url)?, options)?)
}

/// A database without a schema.
async fn empty() -> Result<(TestDatabase, Store)> {
    let database = test_database("pool_empty", async |_| Ok(())).await?;
    let store = open(database.url(), options(16))?;
    Ok((database, store))
}

/// The first column of the first row, which must be text.
async fn text(store: &Store, sql: &str) -> Result<String> {
    let rows = store.read("test", Bulkhead::Watch, sql, &[]).await?;
    Ok(rows.first().context("no row")?.try_get(0)?)
}

async fn batch(store: &Store, sql: &str) -> Result<()> {
    let run = store.run("test", Bulkhead::Watch, async |tx| tx.batch(sql).await);
    Ok(run.await?)
}

fn metrics(store: &Store) -> String {
    let mut registry = Registry::default();
    store.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn reason<T>(outcome: Result<T, StoreError>) -> Option<Unavailability> {
    match outcome {
        Err(StoreError::Unavailable { reason, .. }) => Some(reason),
        _ => None,
    }
}

/// Waits until no call has a place of these bulkheads.
async fn no_place_is_taken(store: &Store, bulkheads: &[&str]) -> Result<()> {
    let free = |name: &&str| {
        let free = format!(r#"database_pool_in_use{{bulkhead="{name}"}} 0"#);
        metrics(store).contains(&free)
    };
    eventually("no place is taken", PATIENCE, async || {
        bulkheads.iter().all(free)
    })
    .await
}

async fn no_open_transaction(store: &Store) -> Result<()> {
    let sql = "SELECT count(*)::text FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in%'";
    eventually("no transaction is left open", PATIENCE, async || {
        text(store, sql).await.is_ok_and(|count| count == "0")
    })
    .await
}

#[test]
fn every_bulkhead_gets_at_least_one_connection() {
    let shares = |total| Bulkhead::ALL.map(|bulkhead| bulkhead.share(total));
    assert_eq!(shares(16), [6, 5, 3, 2]);
    assert_eq!(shares(4), [1, 1, 1, 1]);
    assert_eq!(shares(0), [1, 1, 1, 1]);
    assert_eq!(shares(100), [49, 31, 18, 2]);
}

/// PgBouncer has fewer server connections than the store, so consecutive transactions
/// of one pooled connection run on different server sessions.
#[tokio::test]
async fn every_statement_has_its_limits_behind_a_pgbouncer_in_transaction_mode() -> Result<()> {
    let bouncer = PgBouncer::start(shared_postgres().await?.port()).await?;
    let store = open(&bouncer.url("postgres"), options(16))?;
    eventually("PgBouncer answers", PATIENCE, async || {
        store.ping().await.is_ok()
    })
    .await?;
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        tasks.spawn(async move {
            let words = vec!["a".to_owned()];
            let sql = "SELECT cardinality($1), current_setting('statement_timeout')";
            let row = store.run("limits", Bulkhead::Ingest, async |tx| {
                tx.query_one(sql, &[(&words, Type::TEXT_ARRAY)]).await
            });
            let row = row.await?;
            let limit = text(&store, "SELECT current_setting('statement_timeout')").await?;
            let seen: (i32, String) = (row.try_get(0)?, row.try_get(1)?);
            assert_eq!((seen, &*limit), ((1, "30s".to_owned()), "30s"));
            anyhow::Ok(())
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    Ok(())
}
