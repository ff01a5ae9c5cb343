//! Named transactions: commit, rollback, retry, cancellation, bulkheads.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::{Barrier, Semaphore};

use super::*;
use crate::pg::direct_connection::DirectConnection;

const TABLE: &str = "CREATE TABLE t (id int4 PRIMARY KEY, n int4 NOT NULL);
                     INSERT INTO t VALUES (1, 0), (2, 0)";

#[tokio::test]
async fn a_transaction_commits_on_success_and_rolls_back_on_error() -> Result<()> {
    let (_database, store) = empty().await?;
    batch(&store, TABLE).await?;
    let failed = store.run("fail", Bulkhead::Auth, async |tx| {
        bump(&tx, 1).await?;
        tx.execute("INSERT INTO t VALUES (2, 0)", &[]).await
    });
    let failed = failed.await.unwrap_err();
    assert_eq!(failed.sqlstate(), Some("23505"));
    assert_eq!(failed.constraint(), Some("t_pkey"));
    assert!(!failed.is_unavailable());
    let bumped = async |tx: Tx| bump(&tx, 2).await;
    store.run("bump", Bulkhead::Auth, bumped).await?;
    assert_eq!(counts(&store).await?, "1:0 2:1");
    let metrics = metrics(&store);
    assert!(metrics.contains(r#"database_transactions_total{name="fail",outcome="refused"} 1"#));
    assert!(metrics.contains(r#"database_transactions_total{name="bump",outcome="ok"} 1"#));
    assert!(metrics.contains("database_up 1"));
    Ok(())
}

#[tokio::test]
async fn an_error_that_the_closure_ignores_does_not_pass_for_a_commit() -> Result<()> {
    let (_database, store) = empty().await?;
    batch(&store, TABLE).await?;
    let outcome = store.run("ignore", Bulkhead::Auth, async |tx| {
        bump(&tx, 1).await?;
        let _ = tx.execute("INSERT INTO t VALUES (2, 0)", &[]).await;
        Ok(())
    });
    assert_eq!(outcome.await.unwrap_err().sqlstate(), Some("25P02"));
    assert_eq!(counts(&store).await?, "1:0 2:0");
    Ok(())
}

#[tokio::test]
async fn a_deadlocked_transaction_is_retried() -> Result<()> {
    let (_database, store) = empty().await?;
    batch(&store, TABLE).await?;
    let meet = Barrier::new(2);
    let (one, two) = tokio::join!(cross(&store, &meet, [1, 2]), cross(&store, &meet, [2, 1]));
    assert_eq!(one? + two?, 3, "one of the two ran twice");
    assert_eq!(counts(&store).await?, "1:2 2:2");
    assert!(metrics(&store).contains(r#"database_retries_total{name="cross"} 1"#));
    Ok(())
}

/// Locks one row, waits until the other transaction has locked its row, and then asks for
/// the second row. Returns how often the closure ran.
async fn cross(store: &Store, meet: &Barrier, ids: [i32; 2]) -> Result<u32, StoreError> {
    let ran = AtomicU32::new(0);
    let run = store.run("cross", Bulkhead::Ingest, async |tx| {
        bump(&tx, ids[0]).await?;
        if ran.fetch_add(1, Ordering::Relaxed) == 0 {
            meet.wait().await;
        }
        bump(&tx, ids[1]).await
    });
    run.await?;
    Ok(ran.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_serialization_failure_is_retried_a_bounded_number_of_times() -> Result<()> {
    let (_database, store) = empty().await?;
    batch(&store, TABLE).await?;
    assert_eq!(overtaken(&store, 1).await?, 2);
    let error = overtaken(&store, 100).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
    assert_eq!(error.sqlstate(), Some("40001"));
    assert_eq!(counts(&store).await?, "1:7 2:0");
    Ok(())
}

/// Updates a row that another transaction changes after this one's snapshot, in the first
/// `times` runs. Returns how often the closure ran.
async fn overtaken(store: &Store, times: u32) -> Result<u32, StoreError> {
    let ran = AtomicU32::new(0);
    let run = store.run("overtaken", Bulkhead::Auth, async |tx| {
        tx.batch("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ")
            .await?;
        tx.query("SELECT n FROM t", &[]).await?;
        if ran.fetch_add(1, Ordering::Relaxed) < times {
            let other = async |tx: Tx| bump(&tx, 1).await;
            store.run("other", Bulkhead::Ingest, other).await?;
        }
        bump(&tx, 1).await
    });
    run.await?;
    Ok(ran.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_cancelled_transaction_leaves_nothing_open_in_the_pool() -> Result<()> {
    let (database, _) = empty().await?;
    let store = open(database.url(), options(4))?;
    batch(&store, TABLE).await?;
    for round in 0..200 {
        let work = store.run("dropped", Bulkhead::Auth, async |tx| {
            bump(&tx, 1).await?;
            tx.query("SELECT pg_sleep(0.03)", &[]).await?;
            bump(&tx, 2).await?;
            std::future::pending::<Result<(), StoreError>>().await
        });
        let outcome = timeout(Duration::from_micros(round * 300), work).await;
        assert!(outcome.is_err(), "a future that never completes completed");
    }
    let both = async |tx: Tx| {
        bump(&tx, 1).await?;
        bump(&tx, 2).await
    };
    store.run("after", Bulkhead::Auth, both).await?;
    assert_eq!(counts(&store).await?, "1:1 2:1");
    no_open_transaction(&store).await
}

#[tokio::test]
async fn a_stalled_bulkhead_does_not_block_the_others() -> Result<()> {
    let (_database, store) = empty().await?;
    let (release, held) = (Semaphore::new(0), Barrier::new(7));
    let hold = async || {
        let hold = store.run("hold", Bulkhead::Ingest, async |_tx| {
            held.wait().await;
            drop(release.acquire().await);
            Ok(())
        });
        hold.await
    };
    let others = async {
        held.wait().await;
        for bulkhead in [Bulkhead::Auth, Bulkhead::Watch, Bulkhead::Maintenance] {
            let other = store.read("other", bulkhead, "SELECT 1", &[]);
            timeout(PATIENCE, other).await??;
        }
        let waiting = store.read("waiting", Bulkhead::Ingest, "SELECT 1", &[]);
        assert!(timeout(Duration::from_millis(200), waiting).await.is_err());
        assert!(metrics(&store).contains(r#"database_pool_in_use{bulkhead="ingest"} 6"#));
        release.add_permits(6);
        anyhow::Ok(())
    };
    let (a, b, c, d, e, f, others) =
        tokio::join!(hold(), hold(), hold(), hold(), hold(), hold(), others);
    others?;
    for held in [a, b, c, d, e, f] {
        held?;
    }
    let free = store.read("free", Bulkhead::Ingest, "SELECT 1", &[]);
    free.await?;
    Ok(())
}

async fn bump(tx: &Tx, id: i32) -> Result<(), StoreError> {
    let sql = "UPDATE t SET n = n + 1 WHERE id = $1";
    tx.execute(sql, &[(&id, Type::INT4)]).await.map(drop)
}

async fn counts(store: &Store) -> Result<String> {
    let sql = "SELECT string_agg(id || ':' || n, ' ' ORDER BY id) FROM t";
    text(store, sql).await
}

/// A database with this default, where a setting is `expected` in a single statement and in a transaction all the same.
async fn assert_setting(default: &str, setting: &str, expected: &str) -> Result<TestDatabase> {
    let (database, _) = empty().await?;
    let sql = format!("ALTER DATABASE {} SET {default}", database.name());
    svc_sandbox::query(database.url(), &sql).await?;
    let store = open(database.url(), options(4))?;
    let sql = format!("SELECT current_setting('{setting}')");
    assert_eq!(text(&store, &sql).await?, expected);
    let in_transaction = async |tx: Tx| {
        let row = tx.query_one(&sql, &[]).await?;
        Ok(row.try_get::<_, String>(0)?)
    };
    let found = store.run("test", Bulkhead::Watch, in_transaction).await?;
    assert_eq!(found, expected);
    Ok(database)
}

#[tokio::test]
async fn no_statement_is_compiled_where_the_server_would() -> Result<()> {
    assert_setting("jit = on", "jit", "off").await.map(drop)
}

#[tokio::test]
async fn every_transaction_is_read_committed_whatever_the_default_is() -> Result<()> {
    for level in ["serializable", "repeatable read"] {
        let default = format!("default_transaction_isolation = '{level}'");
        let database = assert_setting(&default, "transaction_isolation", "read committed").await?;
        let found = "SELECT current_setting('transaction_isolation')";
        assert_eq!(svc_sandbox::query(database.url(), found).await?, level);
        let url = DatabaseUrl::parse(database.url())?;
        let direct = DirectConnection::connect(&url, &TxLimits::default()).await?;
        let check = format!("DO $$ BEGIN ASSERT ({found}) = 'read committed'; END $$");
        direct.execute(&check).await?;
    }
    Ok(())
}
