//! A server that freezes, restarts, or is not there at all.

use svc_sandbox::{Postgres, PostgresOptions, free_port};

use super::*;

/// A store whose deadline is one second.
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
async fn a_frozen_server_costs_the_connection_but_not_the_pool() -> Result<()> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let store = impatient(&server.url("postgres"))?;
    answers(&store).await?;
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
    answers(&store).await?;
    assert!(metrics(&store).contains("database_up 1"));
    no_open_transaction(&store).await
}

#[tokio::test]
async fn the_store_reconnects_to_a_restarted_server() -> Result<()> {
    let mut server = Postgres::start(PostgresOptions::default()).await?;
    let store = impatient(&server.url("postgres"))?;
    answers(&store).await?;
    let before = store.last_success().expect("the server answered");
    server.stop_immediate().await?;
    assert!(touch(&store).await.unwrap_err().is_unavailable());
    server.start_again().await?;
    answers(&store).await?;
    assert!(store.last_success().expect("the server answered") > before);
    Ok(())
}

#[tokio::test]
async fn a_connection_that_died_in_the_pool_does_not_fail_a_call() -> Result<()> {
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

/// Terminates the server sessions while this thread sleeps. The store's connection tasks
/// run on this thread, so the pool still believes in its connections afterwards.
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
async fn a_missing_server_is_reported_as_unavailable() -> Result<()> {
    let url = format!("postgres://svc@127.0.0.1:{}/none", free_port()?);
    let store = open(&url, options(3))?;
    assert_eq!(store.last_success(), None);
    let error = store.ping().await.unwrap_err();
    assert_eq!(reason(&error), Some(Unavailability::Connect));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("onnection refused"), "{chain}");
    Ok(())
}

#[tokio::test]
async fn timeouts_and_a_read_only_server_count_as_unavailable() -> Result<()> {
    let url = shared_postgres().await?.url("postgres");
    let mut short = GENEROUS;
    short.statement = Duration::from_millis(50);
    let mut locked = GENEROUS;
    locked.lock = Duration::from_millis(50);
    let store = open(&url, options(3))?;
    let slow = async |tx: Tx| tx.batch("SELECT pg_sleep(20)").await;
    let slow = store.run_within("slow", Bulkhead::Auth, &short, slow);
    unavailable(slow.await, "57014");
    let lock = "SELECT pg_advisory_xact_lock(1)";
    let holder = store.run("holder", Bulkhead::Ingest, async |holder| {
        holder.batch(lock).await?;
        let waiting = async |tx: Tx| tx.batch(lock).await;
        let waits = store.run_within("waits", Bulkhead::Auth, &locked, waiting);
        unavailable(waits.await, "55P03");
        Ok(())
    });
    holder.await?;
    let write = "SET TRANSACTION READ ONLY; CREATE TABLE never ()";
    let write = async |tx: Tx| tx.batch(write).await;
    unavailable(store.run("read_only", Bulkhead::Auth, write).await, "25006");
    Ok(())
}

fn unavailable(outcome: Result<(), StoreError>, sqlstate: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.sqlstate(), Some(sqlstate));
    assert!(error.is_unavailable());
}

#[tokio::test]
async fn a_pool_without_a_free_connection_is_unavailable() -> Result<()> {
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

/// Waits until both bulkheads that these tests use have a working connection.
async fn answers(store: &Store) -> Result<()> {
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
