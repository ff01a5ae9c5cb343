//! The bounds of an agent: samples of an hour, and lists of parts in a day. What exceeds them is a gap, and the books balance.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use svc_store::{GapKind, SampleRow};

use crate::{fixtures::*, support::*};

const MOST_OF_HOUR: i64 = 7_200;
const BOOKS: &str = "SELECT concat_ws(' ', acked_seq, stored_count, rejected_count, gap_count) FROM agent_state WHERE agent_id = ";
const GAPS: &str = "SELECT string_agg(concat_ws(' ', first_seq, last_seq, kind, reason), ', ' ORDER BY first_seq) FROM metric_gaps WHERE agent_id = ";

/// Samples with these numbers, all in the hour that begins then, none with disks.
fn of_hour(hour: Timestamp, seqs: impl Iterator<Item = i64>) -> Vec<SampleRow> {
    let one = |seq| SampleRow {
        disks: Vec::new(),
        ..sample(seq, after(hour, seq % HOUR))
    };
    seqs.map(one).collect()
}

async fn shown(store: &TestStore, agent: TestAgent, sql: &str) -> Result<String> {
    store.sql(&format!("{sql}'{}'", agent.id)).await
}

/// Without the function the general path fails: that of an agent's first samples, for example.
async fn takes_the_path_of_runs(
    store: &TestStore,
    agent: TestAgent,
    samples: &[SampleRow],
) -> Result<()> {
    let rename = |from: &str, to: &str| format!("ALTER FUNCTION {from} RENAME TO {to}");
    store.sql(&rename("samples_prepare", "away")).await?;
    let outcome = agent.store(store, samples).await;
    let first = SampleRow {
        seq: 1,
        ..samples[0].clone()
    };
    let refused = TestAgent::new(store).await?.store(store, &[first]).await;
    store.sql(&rename("away", "samples_prepare")).await?;
    ensure!(refused.is_err(), "the general path worked");
    outcome
}

#[tokio::test]
async fn an_hour_of_an_agent_takes_so_many_samples_and_no_more() -> Result<()> {
    let (store, agent) = world().await?;
    let (hour, next) = (hours_ago(5), hours_ago(4));
    let first = of_hour(hour, 1..MOST_OF_HOUR - 1);
    agent.store(&store, &first).await?;
    let last = of_hour(hour, MOST_OF_HOUR - 1..MOST_OF_HOUR + 1);
    takes_the_path_of_runs(&store, agent, &last).await?;
    let mut excess = of_hour(hour, MOST_OF_HOUR + 1..MOST_OF_HOUR + 3);
    excess.extend(of_hour(next, MOST_OF_HOUR + 3..MOST_OF_HOUR + 4));
    for _ in 0..2 {
        agent.store(&store, &excess).await?;
        assert_eq!(shown(&store, agent, BOOKS).await?, "7203 7201 2 0");
    }
    let gap = "7201 7202 rejected more than 7200 samples of one hour";
    assert_eq!(shown(&store, agent, GAPS).await?, gap);
    let newer = of_hour(next, 7204..7206);
    takes_the_path_of_runs(&store, agent, &newer).await?;
    assert_eq!(shown(&store, agent, BOOKS).await?, "7205 7203 2 0");
    let of_hour = "SELECT string_agg(n::text, ' ' ORDER BY hour) FROM (SELECT hour, count(*) AS n FROM host_metrics GROUP BY hour) h";
    assert_eq!(store.sql(of_hour).await?, "7200 3");
    Ok(())
}

/// Late samples are counted exactly, wherever those before them are.
#[tokio::test]
async fn late_samples_of_a_full_hour_are_rejected_before_and_after_its_compaction() -> Result<()> {
    let (store, agent) = world().await?;
    let (full, fuller, newest) = (hours_ago(5), hours_ago(4), hours_ago(3));
    let mut seqs = 1..;
    let mut numbers = |count: usize| seqs.by_ref().take(count).collect::<Vec<i64>>().into_iter();
    let mut samples = of_hour(full, numbers(7_199));
    samples.extend(of_hour(fuller, numbers(10)));
    samples.extend(of_hour(newest, numbers(1)));
    agent.store(&store, &samples).await?;
    // The rest of one hour, and one too many.
    agent.store(&store, &of_hour(full, numbers(2))).await?;
    assert_eq!(shown(&store, agent, BOOKS).await?, "7212 7211 1 0");
    agent.store(&store, &of_hour(full, numbers(1))).await?;
    compact(&store).await?;
    for forget in ["SELECT", "DELETE FROM agent_hours"] {
        store.sql(forget).await?;
        let mut late = of_hour(full, numbers(1));
        late.extend(of_hour(fuller, numbers(1)));
        agent.store(&store, &late).await?;
    }
    assert_eq!(shown(&store, agent, BOOKS).await?, "7217 7213 4 0");
    let counted = "SELECT string_agg(samples::text, ' ' ORDER BY hour) FROM agent_hours";
    assert_eq!(store.sql(counted).await?, "7200 12");
    Ok(())
}

/// The hour that a clock ahead has left says nothing about the hours before it.
#[tokio::test]
async fn a_newest_hour_in_the_future_is_forgotten() -> Result<()> {
    let (store, agent) = world().await?;
    let hour = hours_ago(2);
    agent.store(&store, &of_hour(hour, 1..7_200)).await?;
    let ahead = "
        UPDATE agent_state SET newest_hour = newest_hour + 1000, newest_hour_samples = 7200;
        INSERT INTO agent_hours SELECT agent_no, newest_hour - 1000, 3 FROM agent_state";
    store.sql(ahead).await?;
    let more = of_hour(hour, 7_200..7_203);
    agent.store(&store, &more).await?;
    assert_eq!(shown(&store, agent, BOOKS).await?, "7202 7200 2 0");
    takes_the_path_of_runs(&store, agent, &of_hour(hours_ago(1), 7_203..7_205)).await?;
    assert_eq!(shown(&store, agent, BOOKS).await?, "7204 7202 2 0");
    let left = "SELECT count(*) FROM agent_hours";
    assert_eq!(store.sql(left).await?, "0");
    Ok(())
}

fn with_disk(seq: i64, name: &str) -> SampleRow {
    SampleRow {
        disks: vec![disk(name, 41)],
        ..sample(seq, after(hours_ago(2), seq))
    }
}

#[tokio::test]
async fn an_agent_begins_so_many_lists_of_parts_a_day_and_no_more() -> Result<()> {
    let (store, agent) = world().await?;
    let names = (1..=256).map(|seq| with_disk(seq, &format!("/{seq}")));
    agent.store(&store, &names.collect::<Vec<_>>()).await?;
    let gaps = [gap(260..=260, GapKind::Declared)];
    let more = [("/new", 257), ("/newer", 258), ("/1", 259)];
    let more = more.map(|(name, seq)| with_disk(seq, name));
    for _ in 0..2 {
        let range = agent.range(&more, &gaps);
        store.samples_append(&[range]).await?;
    }
    let reason = "257 258 rejected more than 256 different lists of parts in a day";
    let expected = format!("{reason}, 260 260 declared lost");
    assert_eq!(shown(&store, agent, GAPS).await?, expected);
    assert_eq!(shown(&store, agent, BOOKS).await?, "260 257 2 1");
    takes_the_path_of_runs(&store, agent, &[with_disk(261, "/1")]).await?;
    let lists = "SELECT count(*) FROM sample_shapes";
    assert_eq!(store.sql(lists).await?, "256", "no list of a rejected one");
    let other = TestAgent::new(&store).await?;
    other.store(&store, &[with_disk(1, "/new")]).await?;
    assert_eq!(shown(&store, other, BOOKS).await?, "1 1 0 0");
    store.sql("UPDATE agent_shapes SET day = day - 1").await?;
    agent.store(&store, &[with_disk(262, "/newest")]).await?;
    assert_eq!(shown(&store, agent, BOOKS).await?, "262 259 2 1");
    Ok(())
}

/// A list that everybody has is stored once, and its row is written once in a week.
#[tokio::test]
async fn agents_share_their_lists_and_do_not_write_those_that_are_known() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[with_disk(1, "/")]).await?;
    let row = "SELECT concat(count(*), ' ', min(xmin::text), ' ', min(seen_on)) FROM sample_shapes";
    let before = store.sql(row).await?;
    let other = TestAgent::new(&store).await?;
    other.store(&store, &[with_disk(1, "/")]).await?;
    assert_eq!(store.sql(row).await?, before);
    let age = "UPDATE sample_shapes SET seen_on = seen_on - 8";
    store.sql(age).await?;
    let third = TestAgent::new(&store).await?;
    third.store(&store, &[with_disk(1, "/")]).await?;
    let seen = "SELECT count(*) FROM sample_shapes WHERE seen_on = current_date";
    ensure!(store.sql(seen).await? == "1", "it would be removed");
    Ok(())
}
