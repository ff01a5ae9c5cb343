//! Commits that wait for a standby which never answers, because there is none.

use svc_sandbox::{Postgres, PostgresOptions, becomes};

use super::*;

const WAITING: &str =
    "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'svc-ingest'";
const INSERT: &str = "INSERT INTO t VALUES (1)";

/// A server with a table, whose commits wait from now on. Its role does not want to see warnings.
async fn waiting_server() -> Result<Postgres> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let prepare = "CREATE TABLE t (n integer); ALTER ROLE svc SET client_min_messages = 'error'";
    server.psql("postgres", prepare).await?;
    standbys(&server, "nobody").await?;
    let commit = "SELECT pg_logical_emit_message(true, 'test', '')";
    eventually("commits wait", PATIENCE, async || {
        let commit = server.psql("postgres", commit);
        timeout(Duration::from_millis(500), commit).await.is_err()
    })
    .await?;
    Ok(server)
}

async fn standbys(server: &Postgres, names: &str) -> Result<()> {
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
    server.psql("postgres", &set).await?;
    server.psql("postgres", "SELECT pg_reload_conf()").await?;
    Ok(())
}

/// Cancels the next commit that waits.
async fn cancel_a_wait(server: &Postgres) -> Result<()> {
    let cancel = format!("SELECT count(pg_cancel_backend(pid)) {WAITING}");
    becomes(&server.url("postgres"), &cancel, "1").await
}

#[tokio::test]
async fn a_commit_whose_wait_for_the_standby_is_cancelled_has_an_unknown_outcome() -> Result<()> {
    let server = waiting_server().await?;
    let bouncer = PgBouncer::start(server.port()).await?;
    let unreplicated = Some(Unavailability::Unreplicated);
    for url in [server.url("postgres"), bouncer.url("postgres")] {
        let store = open(&url, options(16))?;
        let run = store.run("run", Bulkhead::Auth, async |tx| tx.batch(INSERT).await);
        let (outcome, cancelled) = tokio::join!(run, cancel_a_wait(&server));
        cancelled?;
        assert_eq!(reason(outcome), unreplicated);
        let call = store.call("call", Bulkhead::Auth, INSERT, &[]);
        let (outcome, cancelled) = tokio::join!(call, cancel_a_wait(&server));
        cancelled?;
        assert_eq!(reason(outcome), unreplicated);
        let rows = store.read("read", Bulkhead::Auth, "SELECT FROM t", &[]);
        assert!(!rows.await?.is_empty(), "a read does not wait");
        let covered = store.read_covered("covered", Bulkhead::Auth, "SELECT FROM t", &[]);
        let (outcome, cancelled) = tokio::join!(covered, cancel_a_wait(&server));
        cancelled?;
        assert_eq!(reason(outcome), unreplicated, "a covered read waits");
    }
    Ok(())
}

/// A deadline of one second, and far more calls than connections.
#[tokio::test]
async fn commits_that_are_given_up_go_on_waiting_on_no_more_sessions_than_the_pool_has()
-> Result<()> {
    let server = waiting_server().await?;
    let mut hasty = options(4);
    hasty.limits.deadline = Duration::from_secs(1);
    hasty.acquire = Duration::from_millis(100);
    let store = open(&server.url("postgres"), hasty)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        let run = store.run("run", Bulkhead::Auth, async |tx| tx.batch(INSERT).await);
        let call = store.call("call", Bulkhead::Ingest, INSERT, &[]);
        let (run, call) = tokio::join!(run, call);
        assert!(run.is_err() && call.is_err());
    }
    let sessions = format!("SELECT count(*) {WAITING}");
    assert_eq!(server.psql("postgres", &sessions).await?, "2");
    let rows = "SELECT count(*) FROM t";
    let committed = server.psql("postgres", rows).await?;
    assert_eq!(committed, "0", "none was cancelled");
    store.ping().await?;
    standbys(&server, "").await?;
    becomes(&server.url("postgres"), rows, "2").await?;
    no_place_is_taken(&store, &["auth", "ingest"]).await?;
    no_open_transaction(&store).await
}

/// It does not answer new connections either, so it is not waited for.
#[tokio::test]
async fn a_commit_on_a_frozen_server_frees_its_place() -> Result<()> {
    let server = waiting_server().await?;
    let url = format!("{}?connect_timeout=1", server.url("postgres"));
    let mut hasty = options(4);
    hasty.limits.deadline = Duration::from_secs(2);
    let store = open(&url, hasty)?;
    store.read("read", Bulkhead::Auth, "SELECT 1", &[]).await?;
    let call = store.call("call", Bulkhead::Auth, INSERT, &[]);
    let freeze = async {
        let waits = format!("SELECT count(*) {WAITING}");
        becomes(&server.url("postgres"), &waits, "1").await?;
        server.freeze()
    };
    let (call, frozen) = tokio::join!(call, freeze);
    frozen?;
    assert_eq!(reason(call), Some(Unavailability::Deadline));
    no_place_is_taken(&store, &["auth"]).await
}

const PORT: &str = "SELECT inet_server_port()::text";

/// Nothing has stopped the old primary: it accepts connections and says that it accepts writes, but the standby that its
/// commits wait for has become the primary.
#[tokio::test]
async fn a_primary_that_was_replaced_is_left_and_never_used_again() -> Result<()> {
    let old = Postgres::start(PostgresOptions::default()).await?;
    let prepare = "CREATE TABLE t (n integer)";
    old.psql("postgres", prepare).await?;
    let mut new = old.standby().await?;
    standbys(&old, "*").await?;
    let follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    becomes(&old.url("postgres"), follows, "1").await?;
    let (first, second) = (old.port(), new.port());
    let url = format!("postgres://svc@127.0.0.1:{first},127.0.0.1:{second}/postgres");
    let mut hasty = options(4);
    hasty.limits.deadline = Duration::from_secs(2);
    let store = open(&url, hasty)?;
    store.call("call", Bulkhead::Auth, INSERT, &[]).await?;
    assert_eq!(text(&store, PORT).await?, first.to_string());
    new.promote().await?;
    eventually("writes go on", PATIENCE, async || {
        let call = store.call("call", Bulkhead::Auth, INSERT, &[]);
        call.await.is_ok()
    })
    .await?;
    assert_eq!(new.psql("postgres", "SELECT count(*) FROM t").await?, "2");
    for _ in 0..20 {
        assert_eq!(text(&store, PORT).await?, second.to_string());
    }
    no_place_is_taken(&store, &["auth", "watch"]).await?;
    new.stop_immediate().await?;
    for _ in 0..5 {
        let read = store.read("read", Bulkhead::Watch, PORT, &[]).await;
        assert!(reason(read).is_some(), "the old primary answers nobody");
    }
    assert_eq!(old.psql("postgres", PORT).await?, first.to_string());
    new.start_again().await?;
    eventually("the new primary is back", PATIENCE, async || {
        text(&store, PORT).await.is_ok()
    })
    .await?;
    assert_eq!(text(&store, PORT).await?, second.to_string());
    Ok(())
}
