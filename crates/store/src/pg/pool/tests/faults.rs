//! A server that freezes, restarts, or is not there at all.

use svc_sandbox::{Postgres, PostgresOptions, becomes, free_port};

use super::*;

const DEADLINE: Option<Unavailability> = Some(Unavailability::Deadline);

/// A store whose deadline is one second.
fn impatient(url: &str) -> Result<Store> {
    let mut options = options(4);
    options.limits.deadline = Duration::from_secs(1);
    open(url, options)
}

#[tokio::test]
async fn a_frozen_server_costs_the_connection_but_not_the_pool() -> Result<()> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let store = impatient(&server.url("postgres"))?;
    answers(&store).await?;
    server.freeze()?;
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(reason(touch(&store).await), DEADLINE);
    }
    assert!(start.elapsed() < PATIENCE);
    assert!(metrics(&store).contains("database_up 0"));
    assert!(store.away_since().is_some() && store.unwritable_since().is_some());
    server.thaw()?;
    answers(&store).await?;
    assert!(metrics(&store).contains("database_up 1"));
    assert_eq!(store.away_since(), None);
    no_place_is_taken(&store, &["auth"]).await?;
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
    let store = open(database.url(), options(4))?;
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
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(server.psql("postgres", &sql))
    });
    assert_eq!(thread.join().expect("the thread panicked")?, "2");
    Ok(())
}

#[tokio::test]
async fn a_missing_server_is_reported_as_unavailable() -> Result<()> {
    let url = format!("postgres://svc@127.0.0.1:{}/none", free_port()?);
    let store = open(&url, options(4))?;
    assert_eq!(store.last_success(), None);
    let connect = Some(Unavailability::Connect);
    assert_eq!(reason(store.ping().await), connect);
    let error = store.ping().await.unwrap_err();
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("onnection refused"), "{chain}");
    Ok(())
}

#[tokio::test]
async fn timeouts_count_as_unavailable() -> Result<()> {
    let url = shared_postgres().await?.url("postgres");
    let mut short = GENEROUS;
    short.statement = Duration::from_millis(50);
    let mut locked = GENEROUS;
    locked.lock = Duration::from_millis(50);
    let store = open(&url, options(4))?;
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
    Ok(())
}

#[tokio::test]
async fn refused_writes_are_noticed_although_reads_succeed() -> Result<()> {
    let (_database, store) = empty().await?;
    let refused = "SET TRANSACTION READ ONLY; CREATE TABLE never ()";
    let refused = async |tx: Tx| tx.batch(refused).await;
    let outcome = store.run("read_only", Bulkhead::Auth, refused).await;
    unavailable(outcome, "25006");
    touch(&store).await?;
    assert_eq!(store.away_since(), None);
    assert!(store.unwritable_since().is_some(), "a read proves nothing");
    let write = async |tx: Tx| tx.batch("CREATE TABLE t ()").await;
    store.run("write", Bulkhead::Ingest, write).await?;
    assert_eq!(store.unwritable_since(), None);
    Ok(())
}

/// The server could sleep for 30 s: it is cancelled.
#[tokio::test]
async fn a_deadline_ends_the_statement_on_the_server_and_through_a_pgbouncer() -> Result<()> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let bouncer = PgBouncer::start(server.port()).await?;
    for url in [server.url("postgres"), bouncer.url("postgres")] {
        let store = impatient(&url)?;
        answers(&store).await?;
        let sleep = "SELECT pg_sleep(29)";
        let read = store.read("slow", Bulkhead::Auth, sleep, &[]);
        assert_eq!(reason(read.await), DEADLINE);
        let slow = async |tx: Tx| tx.batch(sleep).await;
        let run = store.run("slow", Bulkhead::Ingest, slow);
        assert_eq!(reason(run.await), DEADLINE);
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let cancelling = Instant::now();
        becomes(&server.url("postgres"), sleeping, "0").await?;
        assert!(cancelling.elapsed() < Duration::from_secs(20));
        answers(&store).await?;
    }
    Ok(())
}

/// A table that is locked longer than a deadline, and far more calls than connections.
#[tokio::test]
async fn calls_that_are_given_up_leave_no_more_server_sessions_than_the_pool_has() -> Result<()> {
    let (database, _) = empty().await?;
    let store = impatient(database.url())?;
    batch(&store, "CREATE TABLE t ()").await?;
    let sessions = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'svc-ingest'";
    let url = database.url().to_owned();
    let lock = "BEGIN; LOCK TABLE t; SELECT pg_sleep(8); COMMIT";
    let lock = tokio::spawn(async move { svc_sandbox::query(&url, lock).await });
    let mut most = 0;
    for _ in 0..8 {
        let call = |bulkhead| store.read("waits", bulkhead, "SELECT FROM t", &[]);
        let ingest = call(Bulkhead::Ingest);
        let (a, b, c) = (
            call(Bulkhead::Auth),
            call(Bulkhead::Auth),
            call(Bulkhead::Watch),
        );
        let _ = tokio::join!(a, b, c, ingest);
        let count = svc_sandbox::query(database.url(), sessions).await?;
        most = most.max(count.parse()?);
    }
    assert!(most <= 4, "{most} sessions, and the pool has 4 places");
    lock.await??;
    answers(&store).await
}

#[tokio::test]
async fn a_host_that_says_nothing_does_not_hide_the_next_one() -> Result<()> {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let (silent, port) = (silent.local_addr()?, shared_postgres().await?.port());
    let url = format!("postgres://svc@{silent},127.0.0.1:{port}/postgres?connect_timeout=1");
    let store = open(&url, options(4))?;
    store.ping().await?;
    let began = Instant::now();
    touch(&store).await?;
    // The host that answered is asked first.
    assert!(began.elapsed() < Duration::from_secs(1));
    Ok(())
}

/// A deadline may be shorter than one attempt to connect.
#[tokio::test]
async fn each_host_gets_its_turn_however_short_the_deadline_is() -> Result<()> {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let (silent, port) = (silent.local_addr()?, shared_postgres().await?.port());
    let url = format!("postgres://svc@{silent},{silent},127.0.0.1:{port}/postgres");
    answers(&impatient(&url)?).await
}

fn unavailable(outcome: Result<(), StoreError>, sqlstate: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.sqlstate(), Some(sqlstate));
    assert!(error.is_unavailable());
}

#[tokio::test]
async fn a_pool_without_a_free_connection_is_unavailable() -> Result<()> {
    let url = shared_postgres().await?.url("postgres");
    let mut hasty = options(4);
    hasty.acquire = Duration::from_millis(50);
    let store = open(&url, hasty)?;
    let busy = store.run("busy", Bulkhead::Auth, async |_| {
        let busy = Some(Unavailability::PoolBusy);
        assert_eq!(reason(touch(&store).await), busy);
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
