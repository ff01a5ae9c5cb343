//! A server that freezes, restarts, or is not there at all.

use std::time::Duration;

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions, eventually, free_port, shared_postgres};
use svc_store::{Bulkhead, Store, StoreError, Tx, Unavailability};
use tokio::time::{Instant, timeout};

use crate::support::{GENEROUS, PATIENCE, empty, metrics, open, options, text};

/// A store that loses patience after a second.
fn impatient(url: &str) -> Result<Store> {
    let mut options = options(3);
    options.limits.deadline = Duration::from_secs(1);
    open(url, options)
}

fn reason(error: &StoreError) -> Option<Unavailability> {
    match error {
        StoreError::Unavailable { reason, .. } => Some(*reason),
        _ => None,
    }
}

#[tokio::test]
async fn a_frozen_server_costs_the_connection_and_not_the_pool() -> Result<()> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let store = impatient(&server.url("postgres"))?;
    warm(&store).await?;
    server.freeze()?;
    let start = Instant::now();
    for _ in 0..3 {
        let error = touch(&store).await.unwrap_err();
        assert_eq!(reason(&error), Some(Unavailability::Deadline));
    }
    assert!(start.elapsed() < PATIENCE);
    assert!(metrics(&store).contains("database_up 0"));
    assert!(metrics(&store).contains(r#"database_pool_in_use{bulkhead="auth"} 0"#));
    server.thaw()?;
    recovers(&store).await?;
    assert!(metrics(&store).contains("database_up 1"));
    let open = "SELECT count(*)::text FROM pg_stat_activity WHERE state LIKE 'idle in%'";
    eventually("nothing stays open", PATIENCE, async || {
        text(&store, open).await.is_ok_and(|count| count == "0")
    })
    .await
}

#[tokio::test]
async fn a_restarted_server_is_found_again() -> Result<()> {
    let mut server = Postgres::start(PostgresOptions::default()).await?;
    let store = impatient(&server.url("postgres"))?;
    warm(&store).await?;
    let before = store.last_success().expect("it answered");
    server.stop_immediate().await?;
    assert!(touch(&store).await.unwrap_err().is_unavailable());
    server.start_again().await?;
    recovers(&store).await?;
    assert!(store.last_success().expect("it answered") > before);
    Ok(())
}

#[tokio::test]
async fn connections_that_died_in_the_pool_cost_nobody_a_call() -> Result<()> {
    let (database, _) = empty().await?;
    let store = open(database.url(), options(3))?;
    let others = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity
                   WHERE application_name = 'svc-ingest' AND datname = ";
    let others = format!("{others}'{}'", database.name());
    for _ in 0..50 {
        touch(&store).await?;
        store.ping().await?;
        blocking_psql(others.clone()).await?;
    }
    Ok(())
}

/// Ends the sessions while this thread, and the store's connections on it, sleep:
/// so they look alive when they are next taken from the pool.
async fn blocking_psql(sql: String) -> Result<()> {
    let server = shared_postgres().await?;
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let thread = std::thread::spawn(move || runtime()?.block_on(server.psql("postgres", &sql)));
    let outcome = thread
        .join()
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?;
    assert_eq!(outcome?, "2");
    Ok(())
}

#[tokio::test]
async fn no_server_is_unavailable_and_says_so() -> Result<()> {
    let store = open(
        &format!("postgres://svc@127.0.0.1:{}/none", free_port()?),
        options(3),
    )?;
    assert_eq!(store.last_success(), None);
    let error = store.ping().await.unwrap_err();
    assert_eq!(reason(&error), Some(Unavailability::Connect));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("onnection refused"), "{chain}");
    Ok(())
}

#[tokio::test]
async fn waits_for_locks_and_long_statements_count_as_unavailable() -> Result<()> {
    let url = shared_postgres().await?.url("postgres");
    let mut short = GENEROUS;
    short.statement = Duration::from_millis(50);
    let mut locked = GENEROUS;
    locked.lock = Duration::from_millis(50);
    let store = open(&url, options(3))?;
    let error = store
        .run_within("slow", Bulkhead::Auth, &short, async |tx| {
            tx.query("SELECT pg_sleep(20)", &[]).await
        })
        .await
        .unwrap_err();
    assert!(error.is_unavailable());
    assert_eq!(error.sqlstate(), Some("57014"));
    let error = store
        .run("holder", Bulkhead::Ingest, async |holder| {
            holder.batch("SELECT pg_advisory_xact_lock(1)").await?;
            let waiting = async |tx: Tx| tx.batch("SELECT pg_advisory_xact_lock(1)").await;
            let waits = store.run_within("waits", Bulkhead::Auth, &locked, waiting);
            Ok(waits.await.unwrap_err())
        })
        .await?;
    assert_eq!(error.sqlstate(), Some("55P03"));
    assert!(error.is_unavailable());
    let error = store
        .run("read_only", Bulkhead::Auth, async |tx| {
            tx.batch("SET TRANSACTION READ ONLY; CREATE TABLE never ()")
                .await
        })
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("25006"));
    assert!(error.is_unavailable());
    Ok(())
}

#[tokio::test]
async fn a_busy_pool_is_unavailable() -> Result<()> {
    let url = shared_postgres().await?.url("postgres");
    let mut hasty = options(3);
    hasty.acquire = Duration::from_millis(50);
    let store = open(&url, hasty)?;
    let busy = store.run("busy", Bulkhead::Auth, async |_| {
        let error = touch(&store).await.unwrap_err();
        assert_eq!(reason(&error), Some(Unavailability::PoolBusy));
        Ok(())
    });
    timeout(PATIENCE, busy).await??;
    Ok(())
}

async fn warm(store: &Store) -> Result<()> {
    eventually("the server answers", PATIENCE, async || {
        touch(store).await.is_ok() && store.ping().await.is_ok()
    })
    .await
}

async fn touch(store: &Store) -> Result<(), StoreError> {
    let run = store.run("touch", Bulkhead::Auth, async |tx| {
        tx.query("SELECT 1", &[]).await.map(drop)
    });
    run.await
}

async fn recovers(store: &Store) -> Result<()> {
    eventually("the pool recovers", PATIENCE, async || {
        touch(store).await.is_ok()
    })
    .await
}
