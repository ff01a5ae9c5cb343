//! Retention: partitions are created and dropped without blocking inserts, a pass finishes what a killed one left half done,
//! and a wrong clock drops nothing.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use tokio::time::timeout;

use crate::{fixtures::*, support::*};

const LONG: Duration = Duration::from_hours(24 * 10_000);

/// The attached days of samples as offsets from today, oldest first.
const DAYS: &str = "
    SELECT string_agg((day - (now() AT TIME ZONE 'UTC')::date)::text, ' ' ORDER BY day)
      FROM sample_days WHERE NOT detaching";

/// The number of tables for days of samples, attached or not.
const TABLES: &str =
    "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^sample_chunks_\\d{8}$'";

const SAMPLES: &str = "SELECT count(*) FROM host_metrics";

/// One retention pass, as the service does it. Returns how many partitions were dropped.
async fn pass(store: &TestStore, samples: Duration) -> Result<usize> {
    let direct = store.direct()?;
    let dropped = store.partitions_drop(&direct, samples, LONG).await?;
    store.partitions_create(samples).await?;
    Ok(dropped.len())
}

/// The name of the partition of this many days ago.
async fn partition(store: &TestStore, days_ago: u32) -> Result<String> {
    let day = format!("now() AT TIME ZONE 'UTC' - interval '{days_ago} days'");
    let sql = format!("SELECT to_char({day}, '\"sample_chunks_\"YYYYMMDD')");
    store.sql(&sql).await
}

/// Noon of this many days ago: its hour and the next are of the same day.
fn noon(days_ago: i64) -> Timestamp {
    let day = Timestamp::now().as_second().div_euclid(86_400) - days_ago;
    Timestamp::from_second(day * 86_400 + 43_200).unwrap()
}

async fn detach(store: &TestStore, partition: &str) -> Result<()> {
    let detach = format!("ALTER TABLE sample_chunks DETACH PARTITION {partition}");
    store.sql(&detach).await?;
    Ok(())
}

#[tokio::test]
async fn the_retention_decides_which_days_exist_also_after_it_changed() -> Result<()> {
    let store = migrated().await?;
    for (kept, dropped, days) in [
        (2 * DAY, 0, "-3 -2 -1 0 1 2"),
        (5 * DAY, 0, "-6 -5 -4 -3 -2 -1 0 1 2"),
        // Two in one pass at most.
        (DAY, 2, "-4 -3 -2 -1 0 1 2"),
        (DAY, 2, "-2 -1 0 1 2"),
        (DAY, 0, "-2 -1 0 1 2"),
    ] {
        assert_eq!(pass(&store, kept).await?, dropped, "{days}");
        assert_eq!(store.sql(DAYS).await?, days);
    }
    assert_eq!(store.sql(TABLES).await?, "5", "detached but not dropped");
    Ok(())
}

#[tokio::test]
async fn rollups_outlive_the_days_of_their_samples() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    let agent = TestAgent::new(&store).await?;
    let samples = [sample(1, noon(3)), sample(2, hours_ago(0))];
    agent.store(&store, &samples).await?;
    compact(&store).await?;
    while pass(&store, DAY).await? > 0 {}
    assert_eq!(store.sql(SAMPLES).await?, "1");
    let rollups = "SELECT sum(sample_count) FROM host_metrics_hourly";
    assert_eq!(store.sql(rollups).await?, "2");
    Ok(())
}

/// As if the server's clock were 20 days ahead of the agents' samples.
#[tokio::test]
async fn a_clock_that_is_weeks_ahead_drops_nothing() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 30 * DAY).await?;
    let agent = TestAgent::new(&store).await?;
    let samples = [sample(1, noon(25)), sample(2, noon(20))];
    agent.store(&store, &samples).await?;
    compact(&store).await?;
    let gap = "INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason, recorded_at)
               VALUES (gen_random_uuid(), 1, 1, 'declared', '', now() - interval '23 days')";
    store.sql(gap).await?;
    // Days 31 to 11 are old by the clock.
    assert_eq!(pass(&store, 10 * DAY).await?, 0);
    assert_eq!(store.gaps_prune(10 * DAY).await?, 0);
    let newest = format!("UPDATE host_vitals SET vitals_at = '{}'", noon(19));
    store.sql(&newest).await?;
    // Day 31 is old by the samples.
    assert_eq!(pass(&store, 10 * DAY).await?, 1);
    assert_eq!(store.sql(SAMPLES).await?, "2");
    Ok(())
}

/// For example because somebody restored a table by hand.
#[tokio::test]
async fn a_day_that_cannot_be_made_does_not_stop_the_others() -> Result<()> {
    let store = migrated().await?;
    let odd = format!("CREATE TABLE {} (n integer)", partition(&store, 1).await?);
    store.sql(&odd).await?;
    assert_eq!(store.partitions_create(DAY).await?, 4);
    assert_eq!(store.sql(DAYS).await?, "-2 0 1 2");
    Ok(())
}

#[tokio::test]
async fn pruning_goes_on_until_nothing_old_is_left() -> Result<()> {
    let store = migrated().await?;
    let rows = "
        INSERT INTO agent_events (agent_id, kind, at)
        SELECT gen_random_uuid(), 'presence', now() - interval '9 days' FROM generate_series(1, 25000);
        INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason, recorded_at)
        SELECT gen_random_uuid(), n, n, 'declared', '', now() - interval '9 days' FROM generate_series(1, 25000) n";
    store.sql(rows).await?;
    let people = "INSERT INTO people_events (kind, at) SELECT 'sign-in', now() - n * interval '9 days' FROM generate_series(0, 2) n";
    store.sql(people).await?;
    assert_eq!(store.events_prune(DAY).await?, 25_002);
    let left = "SELECT count(*) FROM people_events";
    assert_eq!(store.sql(left).await?, "1");
    assert_eq!(store.gaps_prune(DAY).await?, 25_000);
    Ok(())
}

#[tokio::test]
async fn rollups_are_dropped_by_the_month() -> Result<()> {
    let store = migrated().await?;
    let months = "SELECT rollups_partition_ensure(now() - n * interval '31 days') FROM generate_series(0, 15) n";
    store.sql(months).await?;
    let direct = store.direct()?;
    let drop = async || store.partitions_drop(&direct, DAY, 400 * DAY).await;
    let dropped = drop().await?;
    assert_eq!(dropped.len(), 2, "{dropped:?}");
    let is_month = |name: &String| name.starts_with("host_rollups_");
    assert!(dropped.iter().all(is_month), "{dropped:?}");
    while !drop().await?.is_empty() {}
    let oldest = "SELECT to_date(right(min(relname), 6), 'YYYYMM') + interval '1 month' > now() - interval '400 days'
                    FROM pg_class WHERE relkind = 'r' AND relname ~ '^host_rollups_\\d{6}$'";
    let kept = store.sql(oldest).await?;
    assert_eq!(kept, "t", "a dropped month reached into the retention");
    Ok(())
}

/// Leaves `day` half detached, as a process does that is killed during the detach: an open
/// transaction that has read the table keeps the detach waiting. Samples can be stored
/// meanwhile.
async fn half_detach(store: &TestStore, day: &str) -> Result<()> {
    let agent = TestAgent::new(store).await?;
    let reader = store.connect().await?;
    let read = "BEGIN; SELECT count(*) FROM host_metrics";
    reader.batch_execute(read).await?;
    let (beside, concurrently) = (store.clone(), format!("{day} CONCURRENTLY"));
    let killed = tokio::spawn(async move { detach(&beside, &concurrently).await });
    let pending = format!(
        "SELECT count(*) FROM pg_inherits WHERE inhdetachpending AND inhrelid = '{day}'::regclass"
    );
    store.becomes(&pending, "1").await?;
    let range = agent.range(&[sample(1, Timestamp::now())], &[]);
    let watermarks = store.samples_append(&[range]).await?;
    assert_eq!(watermarks[0].acked_seq, 1, "the insert was blocked");
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE query LIKE 'ALTER TABLE sample_chunks DETACH%' AND datname = current_database()";
    store.sql(kill).await?;
    assert!(killed.await?.is_err());
    Ok(reader.batch_execute("COMMIT").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_finishes_what_a_killed_one_left_and_never_blocks_inserts() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    half_detach(&store, &partition(&store, 6).await?).await?;
    detach(&store, &partition(&store, 5).await?).await?;
    let dropped = pass(&store, 3 * DAY).await?;
    assert_eq!(dropped, 2, "one is finalized and dropped, one is dropped");
    assert_eq!(store.sql(TABLES).await?, "7");
    assert_eq!(store.sql(DAYS).await?, "-4 -3 -2 -1 0 1 2");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_day_within_the_retention_is_attached_again_with_its_samples() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    let agent = TestAgent::new(&store).await?;
    agent.store(&store, &[sample(1, noon(2))]).await?;
    compact(&store).await?;
    half_detach(&store, &partition(&store, 3).await?).await?;
    detach(&store, &partition(&store, 2).await?).await?;
    assert_eq!(store.sql(DAYS).await?, "-6 -5 -4 -1 0 1 2");
    let old = "SELECT count(*) FROM host_metrics WHERE sampled_at < now() - interval '1 day'";
    assert_eq!(store.sql(old).await?, "0");
    assert_eq!(pass(&store, 5 * DAY).await?, 0);
    assert_eq!(store.sql(DAYS).await?, "-6 -5 -4 -3 -2 -1 0 1 2");
    assert_eq!(store.sql(old).await?, "1");
    Ok(())
}

#[tokio::test]
async fn creating_a_day_waits_for_no_reader_and_no_writer() -> Result<()> {
    let store = migrated().await?;
    pass(&store, DAY).await?;
    let other = store.connect().await?;
    let lock = "BEGIN; SELECT count(*) FROM host_metrics; LOCK TABLE sample_chunks, samples_open IN ROW EXCLUSIVE MODE";
    other.batch_execute(lock).await?;
    let made = timeout(PATIENCE, store.partitions_create(3 * DAY)).await??;
    assert_eq!(made, 2);
    Ok(())
}

#[tokio::test]
async fn gaps_are_removed_with_the_samples_of_their_time() -> Result<()> {
    let store = migrated().await?;
    let gaps = "
        INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason, recorded_at)
        SELECT gen_random_uuid(), n, n, 'declared', '', now() - n * interval '1 day' FROM generate_series(9, 1, -1) n";
    store.sql(gaps).await?;
    let other = store.connect().await?;
    let lock = "BEGIN; SELECT FROM metric_gaps WHERE first_seq <= 4 FOR UPDATE";
    other.batch_execute(lock).await?;
    // It does not wait for a gap that stays.
    assert_eq!(store.gaps_prune(3 * DAY).await?, 5);
    let newest = "SELECT max(first_seq) FROM metric_gaps";
    assert_eq!(store.sql(newest).await?, "4");
    Ok(())
}
