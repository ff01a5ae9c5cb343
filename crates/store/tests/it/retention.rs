//! Retention: partitions are created and dropped without blocking inserts, and a pass
//! finishes what a killed one left half done.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use svc_sandbox::eventually;
use svc_store::DatabaseUrl;
use tokio::time::timeout;

use crate::{
    fixtures::{DAY, TestAgent, compact, hours_ago, sample},
    support::{PATIENCE, TestStore, migrated},
};

const LONG: Duration = Duration::from_hours(24 * 10_000);

/// The attached days of samples as offsets from today, oldest first.
const DAYS: &str = "
    SELECT string_agg((day - (now() AT TIME ZONE 'UTC')::date)::text, ' ' ORDER BY day)
      FROM sample_days WHERE parent = 'sample_chunks'::regclass AND NOT detaching";

/// The number of tables for days of samples, attached or not.
const TABLES: &str =
    "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^sample_chunks_\\d{8}$'";

const SAMPLES: &str = "SELECT count(*) FROM host_metrics";

/// One retention pass, as the service does it. Returns how many partitions were dropped.
async fn pass(store: &TestStore, samples: Duration) -> Result<usize> {
    let direct = DatabaseUrl::parse(store.url())?;
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
    assert_eq!(pass(&store, 2 * DAY).await?, 0);
    assert_eq!(store.sql(DAYS).await?, "-3 -2 -1 0 1 2");
    assert_eq!(pass(&store, 5 * DAY).await?, 0);
    assert_eq!(store.sql(DAYS).await?, "-6 -5 -4 -3 -2 -1 0 1 2");
    assert_eq!(pass(&store, DAY).await?, 4);
    assert_eq!(store.sql(DAYS).await?, "-2 -1 0 1 2");
    assert_eq!(store.sql(TABLES).await?, "5", "detached but not dropped");
    assert_eq!(pass(&store, DAY).await?, 0, "nothing is left to do");
    Ok(())
}

#[tokio::test]
async fn rollups_outlive_the_days_of_their_samples() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    let agent = TestAgent::new(&store).await?;
    agent.store(&store, &[sample(1, noon(3))]).await?;
    compact(&store).await?;
    assert_eq!(pass(&store, DAY).await?, 4);
    assert_eq!(store.sql(SAMPLES).await?, "0");
    let rollups = "SELECT sample_count FROM host_metrics_hourly";
    assert_eq!(store.sql(rollups).await?, "1");
    Ok(())
}

/// Days of the previous version's samples, and one hour of each that it had not rolled up.
async fn old_days(store: &TestStore) -> Result<TestAgent> {
    store.partitions_create(5 * DAY).await?;
    let agent = TestAgent::new(store).await?;
    for days_ago in 3..=5 {
        let sql = format!(
            "SELECT partition_ensure('host_metrics_old', to_char(day, 'YYYYMMDD'), day, day + interval '1 day')
               FROM date_trunc('day', now() - interval '{days_ago} days', 'UTC') day;
             INSERT INTO host_metrics_old
             SELECT '{host}', '{noon}', '{agent}', {days_ago}, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                    '[{{\"mount_point\": \"/\", \"total_bytes\": 100, \"used_bytes\": 42}}]';
             INSERT INTO host_vitals (host_id) VALUES ('{host}') ON CONFLICT DO NOTHING;
             INSERT INTO rollups_due VALUES ('{noon}', '{host}')",
            host = agent.host,
            agent = agent.id,
            noon = noon(days_ago),
        );
        store.sql(&sql).await?;
    }
    Ok(agent)
}

const OLD_SAMPLES: &str = "SELECT count(*) FROM host_metrics_old";

#[tokio::test]
async fn history_of_the_previous_version_is_read_rolled_up_and_ages_out() -> Result<()> {
    let store = migrated().await?;
    old_days(&store).await?;
    assert_eq!(store.sql(SAMPLES).await?, "3");
    while store.rollups_left_over(2).await?.more {}
    let rollups = "SELECT concat_ws(' ', count(*), sum(sample_count), max(fullest_disk_percent)) FROM host_metrics_hourly";
    assert_eq!(store.sql(rollups).await?, "3 3 42");
    pass(&store, DAY).await?;
    assert_eq!(store.sql(OLD_SAMPLES).await?, "0");
    assert_eq!(store.sql(rollups).await?, "3 3 42");
    Ok(())
}

/// Two days more than the retention, whatever keeps the rollups from being computed.
#[tokio::test]
async fn rollups_that_are_not_computed_delay_a_drop_by_two_days_at_most() -> Result<()> {
    let store = migrated().await?;
    old_days(&store).await?;
    pass(&store, DAY).await?;
    assert_eq!(store.sql(OLD_SAMPLES).await?, "2");
    store.rollups_left_over(10).await?;
    pass(&store, DAY).await?;
    assert_eq!(store.sql(OLD_SAMPLES).await?, "0");
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
    assert_eq!(store.events_prune(DAY).await?, 25_000);
    assert_eq!(store.gaps_prune(DAY).await?, 25_000);
    Ok(())
}

#[tokio::test]
async fn rollups_are_dropped_by_the_month() -> Result<()> {
    let store = migrated().await?;
    let months = "SELECT rollups_partition_ensure(now() - n * interval '31 days') FROM generate_series(0, 15) n";
    store.sql(months).await?;
    let direct = DatabaseUrl::parse(store.url())?;
    let dropped = store.partitions_drop(&direct, DAY, 400 * DAY).await?;
    assert!((1..=3).contains(&dropped.len()), "{dropped:?}");
    let is_month = |name: &String| name.starts_with("host_rollups_");
    assert!(dropped.iter().all(is_month), "{dropped:?}");
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
    reader
        .batch_execute("BEGIN; SELECT count(*) FROM host_metrics")
        .await?;
    let (beside, day) = (store.clone(), day.to_owned());
    let killed = tokio::spawn({
        let day = format!("{day} CONCURRENTLY");
        async move { detach(&beside, &day).await }
    });
    let pending = format!(
        "SELECT count(*) FROM pg_inherits WHERE inhdetachpending AND inhrelid = '{day}'::regclass"
    );
    eventually("the detach is half done", PATIENCE, async || {
        store.sql(&pending).await.is_ok_and(|count| count == "1")
    })
    .await?;
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
async fn a_half_detached_day_within_the_retention_is_attached_again() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    half_detach(&store, &partition(&store, 3).await?).await?;
    assert_eq!(store.sql(DAYS).await?, "-6 -5 -4 -2 -1 0 1 2");
    assert_eq!(pass(&store, 5 * DAY).await?, 0);
    assert_eq!(store.sql(DAYS).await?, "-6 -5 -4 -3 -2 -1 0 1 2");
    Ok(())
}

#[tokio::test]
async fn a_detached_day_within_the_retention_is_attached_with_its_samples() -> Result<()> {
    let store = migrated().await?;
    pass(&store, 5 * DAY).await?;
    let agent = TestAgent::new(&store).await?;
    agent.store(&store, &[sample(1, hours_ago(48))]).await?;
    compact(&store).await?;
    let day = "SELECT tableoid::regclass FROM sample_chunks";
    detach(&store, &store.sql(day).await?).await?;
    assert_eq!(store.sql(SAMPLES).await?, "0");
    pass(&store, 5 * DAY).await?;
    assert_eq!(store.sql(SAMPLES).await?, "1");
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
    assert_eq!(store.gaps_prune(3 * DAY).await?, 5);
    let newest = "SELECT max(first_seq) FROM metric_gaps";
    assert_eq!(store.sql(newest).await?, "4");
    Ok(())
}
