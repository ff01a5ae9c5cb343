//! Nothing is lost where the server's default isolation level is stricter than READ COMMITTED.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_store::{COMPACTION_STEP, SampleRow};
use tokio::time::timeout;

use crate::{fixtures::*, support::*};

/// Makes appends wait where they have looked for the open hour and have not taken it yet, while somebody holds lock 77.
const GATE: &str = "
    CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE plpgsql AS $$
    BEGIN
        WHILE current_query() LIKE '-- samples_append%' AND NOT pg_try_advisory_xact_lock_shared(77) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN now() + (SELECT count(*) FROM hours_passed) * interval '1 hour';
    END $$";

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '-- samples_append%' AND wait_event = 'PgSleep'";

/// The first sample of an agent takes the general path, the second one the path of runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_that_is_sealed_during_an_append_loses_no_sample_at_any_level() -> Result<()> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    hour_passes(&store).await?;
    store.sql(GATE).await?;
    for (number, level) in ["serializable", "repeatable read"].into_iter().enumerate() {
        let default = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '{level}'); END $$"
        );
        store.sql(&default).await?;
        let strict = TestStore::open(store.url(), 8)?;
        let agent = TestAgent::new(&store).await?;
        for seq in 1..=2 {
            let sample = sample(seq, after(hours_ago(1), seq));
            append_while_hour_is_sealed(&strict, agent, sample).await?;
        }
        let found = store.sql("SELECT count(*) FROM host_metrics").await?;
        ensure!(found == (2 * number + 2).to_string(), "{level}: {found}");
    }
    let books = "SELECT string_agg(concat_ws(' ', acked_seq, stored_count), ', ') FROM agent_state";
    assert_eq!(store.sql(books).await?, "2 2, 2 2");
    assert_eq!(seal_and_compact(&store).await?, 1, "the last one");
    Ok(())
}

async fn append_while_hour_is_sealed(
    store: &TestStore,
    agent: TestAgent,
    sample: SampleRow,
) -> Result<()> {
    let gate = store.connect().await?;
    gate.batch_execute("SELECT pg_advisory_lock(77)").await?;
    let appending = {
        let store = store.clone();
        tokio::spawn(async move { agent.store(&store, &[sample]).await })
    };
    store.becomes(WAITING, "1").await?;
    seal_and_compact(store).await?;
    gate.batch_execute("SELECT pg_advisory_unlock(77)").await?;
    timeout(PATIENCE, appending).await??
}

/// Lets an hour pass, and compacts it. Returns how many samples it had.
async fn seal_and_compact(store: &TestStore) -> Result<i64> {
    store.sql("INSERT INTO hours_passed DEFAULT VALUES").await?;
    store.hours_create().await?;
    let sealed = timeout(Duration::from_secs(10), store.hours_seal()).await??;
    ensure!(sealed > 0, "nothing was sealed");
    compact_sealed(store, COMPACTION_STEP).await
}
