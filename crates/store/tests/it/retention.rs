//! Retention: partitions that come and go, without anybody waiting, whatever was left half done.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use svc_sandbox::{TestDatabase, eventually};
use svc_store::{Bulkhead, DatabaseUrl, Store};

use crate::support::{PATIENCE, batch, migrated, text};
use crate::telling::{DAY, hours_ago, sample, teller};

const LONG: Duration = Duration::from_hours(24 * 10_000);

/// Days of samples that are attached, counted from today; oldest first.
const DAYS: &str = "
    SELECT string_agg((to_date(right(relname, 8), 'YYYYMMDD') - (now() AT TIME ZONE 'UTC')::date)::text, ' ' ORDER BY relname)
      FROM pg_inherits JOIN pg_class ON oid = inhrelid
     WHERE inhparent = 'host_metrics'::regclass AND NOT inhdetachpending";

/// Tables that look like days of samples, attached or not.
const TABLES: &str =
    "SELECT count(*)::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^host_metrics_\\d{8}$'";

struct World {
    database: TestDatabase,
    store: Store,
    direct: DatabaseUrl,
}

impl World {
    async fn new() -> Result<World> {
        let (database, store) = migrated().await?;
        let direct = DatabaseUrl::parse(database.url())?;
        Ok(World {
            database,
            store,
            direct,
        })
    }

    /// A pass, as the service does it.
    async fn keep(&self, samples: Duration) -> Result<usize> {
        let dropped = self
            .store
            .partitions_drop(&self.direct, samples, LONG)
            .await?;
        self.store.samples_prepare(samples).await?;
        Ok(dropped.len())
    }

    async fn text(&self, sql: &str) -> Result<String> {
        text(&self.store, sql).await
    }
}

#[tokio::test]
async fn days_come_and_go_as_the_retention_says_and_heal_when_it_changes() -> Result<()> {
    let world = World::new().await?;
    assert_eq!(world.keep(2 * DAY).await?, 0);
    assert_eq!(world.text(DAYS).await?, "-3 -2 -1 0 1 2");
    assert_eq!(world.keep(5 * DAY).await?, 0);
    assert_eq!(world.text(DAYS).await?, "-6 -5 -4 -3 -2 -1 0 1 2");
    assert_eq!(world.keep(DAY).await?, 4);
    assert_eq!(world.text(DAYS).await?, "-2 -1 0 1 2");
    assert_eq!(world.text(TABLES).await?, "5", "dropped, not only detached");
    assert_eq!(world.keep(DAY).await?, 0, "nothing is left to do");
    Ok(())
}

#[tokio::test]
async fn a_day_is_kept_until_its_hours_are_rolled_up() -> Result<()> {
    let world = World::new().await?;
    world.keep(5 * DAY).await?;
    let teller = teller(&world.store).await?;
    let range = teller.range(&[sample(1, hours_ago(24 * 5))], &[]);
    world.store.samples_append(&[range]).await?;
    assert_eq!(world.keep(DAY).await?, 3, "the others");
    world.store.rollups_gather().await?;
    assert_eq!(world.keep(DAY).await?, 0, "gathered is not computed");
    world.store.rollups_compute().await?;
    assert_eq!(world.keep(DAY).await?, 1);
    assert_eq!(
        world
            .text("SELECT count(*)::text FROM host_metrics")
            .await?,
        "0"
    );
    assert_eq!(
        world
            .text("SELECT sample_count::text FROM host_metrics_hourly")
            .await?,
        "1",
        "rollups outlive samples"
    );
    Ok(())
}

#[tokio::test]
async fn rollups_are_dropped_by_the_month() -> Result<()> {
    let world = World::new().await?;
    batch(&world.store, "SELECT rollups_partition_ensure(now() - n * interval '31 days') FROM generate_series(0, 15) n").await?;
    let dropped = world
        .store
        .partitions_drop(&world.direct, DAY, 400 * DAY)
        .await?;
    assert!((1..=3).contains(&dropped.len()), "{dropped:?}");
    assert!(
        dropped
            .iter()
            .all(|name| name.starts_with("host_metrics_hourly_"))
    );
    let oldest = "SELECT (to_date(right(min(relname), 6), 'YYYYMM') + interval '1 month' > now() - interval '400 days')::text
                    FROM pg_class WHERE relkind = 'r' AND relname ~ '^host_metrics_hourly_\\d{6}$'";
    assert_eq!(
        world.text(oldest).await?,
        "true",
        "no month was dropped that reaches into the retention"
    );
    Ok(())
}

/// Leaves `day` half detached, as somebody who is killed there does: a reader that stays
/// holds the detach up. Samples are stored all the while.
async fn half_detach(world: &World, day: &str) -> Result<()> {
    let (store, name) = (&world.store, world.database.name().to_owned());
    let teller = teller(store).await?;
    let detach = format!("ALTER TABLE host_metrics DETACH PARTITION {day} CONCURRENTLY");
    let pending = format!(
        "SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending AND inhrelid = '{day}'::regclass"
    );
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE query LIKE 'ALTER TABLE host_metrics DETACH%' AND datname = current_database()";
    let held = store.run("reader", Bulkhead::Watch, async |reader| {
        reader.batch("SELECT count(*) FROM host_metrics").await?;
        let (name, detach) = (name.clone(), detach.clone());
        let server = svc_sandbox::shared_postgres().await.expect("a server");
        let killed = tokio::spawn(async move { server.psql(&name, &detach).await });
        let half_done = async || text(store, &pending).await.is_ok_and(|count| count == "1");
        let waits = eventually("the detach is half done", PATIENCE, half_done);
        waits.await.expect("half done");
        let told = teller.range(&[sample(1, Timestamp::now())], &[]);
        let marks = store.samples_append(&[told]).await?;
        assert_eq!(marks[0].acked_seq, 1, "an insert does not wait for it");
        batch(store, kill).await.expect("killed");
        assert!(killed.await.expect("joined").is_err());
        Ok(())
    });
    Ok(held.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_predecessor_left_is_finished_and_inserts_never_wait() -> Result<()> {
    let world = World::new().await?;
    world.keep(5 * DAY).await?;
    let oldest =
        "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '6 days', '\"host_metrics_\"YYYYMMDD')";
    half_detach(&world, &world.text(oldest).await?).await?;
    let next = world.text(&oldest.replace('6', "5")).await?;
    batch(
        &world.store,
        &format!("ALTER TABLE host_metrics DETACH PARTITION {next}"),
    )
    .await?;
    assert_eq!(
        world.keep(3 * DAY).await?,
        2,
        "one finalized and dropped, one only dropped"
    );
    assert_eq!(world.text(TABLES).await?, "7");
    assert_eq!(world.text(DAYS).await?, "-4 -3 -2 -1 0 1 2");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_detached_day_that_is_to_be_kept_after_all_comes_back() -> Result<()> {
    let world = World::new().await?;
    world.keep(5 * DAY).await?;
    let today =
        "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '3 days', '\"host_metrics_\"YYYYMMDD')";
    half_detach(&world, &world.text(today).await?).await?;
    assert_eq!(world.text(DAYS).await?, "-6 -5 -4 -2 -1 0 1 2");
    assert_eq!(world.keep(5 * DAY).await?, 0);
    assert_eq!(world.text(DAYS).await?, "-6 -5 -4 -3 -2 -1 0 1 2");
    Ok(())
}

#[tokio::test]
async fn a_detached_day_that_is_to_be_kept_after_all_is_attached_with_its_samples() -> Result<()> {
    let world = World::new().await?;
    world.keep(5 * DAY).await?;
    let teller = teller(&world.store).await?;
    world
        .store
        .samples_append(&[teller.range(&[sample(1, hours_ago(48))], &[])])
        .await?;
    let day = world
        .text("SELECT tableoid::regclass::text FROM host_metrics")
        .await?;
    batch(
        &world.store,
        &format!("ALTER TABLE host_metrics DETACH PARTITION {day}"),
    )
    .await?;
    assert_eq!(
        world
            .text("SELECT count(*)::text FROM host_metrics")
            .await?,
        "0"
    );
    world.keep(5 * DAY).await?;
    assert_eq!(
        world
            .text("SELECT count(*)::text FROM host_metrics")
            .await?,
        "1"
    );
    Ok(())
}

#[tokio::test]
async fn making_a_day_waits_for_no_reader_and_no_writer() -> Result<()> {
    let world = World::new().await?;
    world.keep(DAY).await?;
    let held = world.store.run("reader", Bulkhead::Ingest, async |reader| {
        reader
            .batch(
                "SELECT count(*) FROM host_metrics; LOCK TABLE host_metrics IN ROW EXCLUSIVE MODE",
            )
            .await?;
        world.store.samples_prepare(3 * DAY).await
    });
    assert_eq!(tokio::time::timeout(PATIENCE, held).await??, 2);
    Ok(())
}

#[tokio::test]
async fn gaps_go_with_the_samples_they_stood_among() -> Result<()> {
    let world = World::new().await?;
    batch(&world.store, "INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason, recorded_at)
                         SELECT gen_random_uuid(), n, n, 'declared', '', now() - n * interval '1 day' FROM generate_series(9, 1, -1) n").await?;
    assert_eq!(world.store.gaps_prune(3 * DAY).await?, 5);
    assert_eq!(
        world
            .text("SELECT max(first_seq)::text FROM metric_gaps")
            .await?,
        "4"
    );
    Ok(())
}
