//! A row that somebody has locked, and a part of a batch that fails, withhold nobody else's watermark.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use svc_store::{AgentId, GapKind, Range};
use tokio::time::Instant;

use crate::{fixtures::*, support::*};

/// Whoever waits for the lock fails: it is held until the call has returned.
const SOON: Duration = Duration::from_secs(10);
const STORED: &str =
    "SELECT concat_ws(' ', count(*), count(DISTINCT (agent_no, seq))) FROM samples_visible";

/// A gap, so that the range takes the general path, and a sample.
fn with_gap(agent: &TestAgent, seq: i64) -> Range {
    let gap = gap(seq..=seq, GapKind::Declared);
    agent.range(&samples(seq + 1..=seq + 1), &[gap])
}

/// A thousand agents that take the path of runs, and one more.
async fn fleet() -> Result<(TestStore, Vec<TestAgent>, TestAgent)> {
    let (store, one) = world().await?;
    let others = TestAgent::many(&store, 1_000).await?;
    let all = others.iter().chain([&one]);
    let first = |of: &TestAgent| of.range(&samples(1..=1), &[]);
    let ranges: Vec<Range> = all.map(first).collect();
    store.samples_append(&ranges).await?;
    Ok((store, others, one))
}

async fn append(
    store: &TestStore,
    acked: &mut BTreeMap<AgentId, i64>,
    ranges: &[Range],
) -> Result<Vec<AgentId>> {
    let began = Instant::now();
    let left_out = store.samples_append_to(acked, ranges).await?;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    Ok(left_out)
}

#[tokio::test]
async fn a_locked_row_withholds_the_watermark_of_its_agent_alone() -> Result<()> {
    let (store, others, one) = fleet().await?;
    let locks = [
        format!("agent_state WHERE agent_id = '{}'", one.id),
        format!("host_vitals WHERE host_id = '{}'", one.host),
    ];
    let holder = store.connect().await?;
    let mut seq = 2;
    for lock in &locks {
        for as_run in [true, false] {
            let lock = format!("BEGIN; SELECT FROM {lock} FOR UPDATE");
            holder.batch_execute(&lock).await?;
            let mine = match as_run {
                true => one.range(&samples(seq..=seq + 1), &[]),
                false => with_gap(&one, seq),
            };
            let theirs = others
                .iter()
                .map(|of| of.range(&samples(seq..=seq + 1), &[]));
            let ranges: Vec<Range> = theirs.chain([mine]).collect();
            let mut acked = BTreeMap::new();
            assert_eq!(append(&store, &mut acked, &ranges).await?, [one.id]);
            assert_eq!(acked.remove(&one.id), Some(0), "to be delivered again");
            assert!(acked.len() == 1_000 && acked.values().all(|acked| *acked == seq + 1));
            let alone = store.samples_append(&ranges[1_000..]).await;
            assert!(alone.unwrap_err().is_unavailable());
            holder.batch_execute("ROLLBACK").await?;
            assert_eq!(append(&store, &mut acked, &ranges).await?, []);
            assert_eq!(acked.get(&one.id), Some(&(seq + 1)));
            seq += 2;
        }
    }
    // Two of the one agent's numbers are gaps.
    let all = 1_001 * (seq - 1) - 2;
    assert_eq!(store.sql(STORED).await?, format!("{all} {all}"));
    Ok(())
}

#[tokio::test]
async fn what_is_committed_is_known_if_a_later_part_of_the_call_fails() -> Result<()> {
    let (store, others, one) = fleet().await?;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$no$$; END';
                  CREATE TRIGGER refuse BEFORE INSERT ON metric_gaps EXECUTE FUNCTION refuse()";
    store.sql(refuse).await?;
    let theirs = others.iter().map(|of| of.range(&samples(2..=2), &[]));
    let ranges: Vec<Range> = theirs.chain([with_gap(&one, 2)]).collect();
    let mut acked = BTreeMap::new();
    let failed = store.samples_append_to(&mut acked, &ranges).await;
    assert!(failed.unwrap_err().is_data_error());
    assert!(acked.len() == 1_000 && acked.values().all(|acked| *acked == 2));
    // Those that are committed are not even looked at again.
    let unlocked = "ALTER TABLE metric_gaps DISABLE TRIGGER refuse;
                    CREATE TABLE asked (n bigint);
                    CREATE FUNCTION count_asked() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO asked SELECT count(*) FROM changed; RETURN NULL; END';
                    CREATE TRIGGER count_asked AFTER UPDATE ON agent_state REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_asked()";
    store.sql(unlocked).await?;
    assert_eq!(append(&store, &mut acked, &ranges).await?, []);
    assert_eq!(acked.get(&one.id), Some(&3));
    assert_eq!(store.sql("SELECT sum(n) FROM asked").await?, "1");
    assert_eq!(store.sql(STORED).await?, "2002 2002");
    Ok(())
}
