//! Compaction: readers see each sample exactly once at any moment, whoever is killed, and nothing that was stored
//! changes.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use svc_store::{COMPACTION_STEP, PartKind, SampleRow};
use tokio::time::{sleep, timeout};

use crate::{
    fixtures::*,
    rollup_oracle::{check, check_values},
    support::*,
};

/// All that the view shows, in a fixed order.
pub const ALL: &str = "SELECT coalesce(md5(string_agg(m::text, chr(10) ORDER BY host_id, agent_id, seq, m::text)), '') FROM host_metrics m";

/// Samples that the view has twice or not at all, and the difference to what the rollups count.
pub const SEEN: &str = "SELECT concat_ws(' ', count(*), count(DISTINCT (agent_id, seq)), (SELECT sum(sample_count) FROM host_metrics_hourly)) FROM host_metrics";

const IN_ARRAYS: &str = "SELECT sum(cardinality(c.seq)) FROM host_vitals v CROSS JOIN LATERAL host_chunks(v.host_id, '-infinity', 'infinity') c";

/// Agents with samples of three hours, ten in each.
pub async fn fleet(store: &TestStore, agents: usize) -> Result<Vec<(TestAgent, Vec<SampleRow>)>> {
    let mut fleet = Vec::new();
    for agent in TestAgent::many(store, agents).await? {
        let at = |seq: i64| after(hours_ago(4), seq * HOUR / 10);
        let samples: Vec<SampleRow> = (1..=30).map(|seq| sample(seq, at(seq))).collect();
        agent.store(store, &samples).await?;
        fleet.push((agent, samples));
    }
    Ok(fleet)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_is_seen_once_while_hours_are_compacted_and_compactors_are_killed()
-> Result<()> {
    let (store, _) = world().await?;
    let fleet = fleet(&store, 20).await?;
    close(&store).await?;
    let all = store.sql(ALL).await?;
    let done = AtomicBool::new(false);
    let compacting = async {
        let left =
            "SELECT count(*) FROM sample_hours WHERE sealed AND compacted_below < 2147483647";
        while store.sql(left).await? != "0" {
            // A killed step is an error, and what it did is undone.
            drop(store.compaction_step(20).await);
        }
        let direct = store.direct()?;
        while store.sql("SELECT count(*) FROM samples_open").await? != "0" {
            drop(store.hours_drop(&direct).await);
        }
        done.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    };
    let killing = async {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE datname = current_database() AND query LIKE '%-- compaction_step%' AND state <> 'idle' AND pid <> pg_backend_pid()";
        let mut killed = 0;
        while !done.load(Ordering::Relaxed) {
            killed += store.sql(kill).await?.parse::<u32>()?;
            // Longer and longer, so that a slow machine gets done too.
            sleep(Duration::from_millis(40) * (1 + killed)).await;
        }
        anyhow::Ok(killed)
    };
    let reading = async {
        let mut reads = 0;
        while !done.load(Ordering::Relaxed) || reads == 0 {
            let seen = store.sql(SEEN).await?;
            ensure!(seen == "600 600 600", "{seen}");
            let in_arrays = store.sql(IN_ARRAYS).await?;
            ensure!(in_arrays == "600", "{in_arrays} in arrays");
            reads += 1;
        }
        anyhow::Ok(reads)
    };
    let race = async { tokio::try_join!(compacting, killing, reading) };
    let ((), killed, reads) = timeout(PATIENCE * 4, race).await??;
    println!("{killed} killed, {reads} reads");
    assert_eq!(store.sql(ALL).await?, all);
    for (agent, samples) in &fleet {
        check(&store, agent.host, samples).await.context("rollup")?;
    }
    Ok(())
}

/// Gaps in the numbers, disks that come and go, none at all, and times out of order.
#[tokio::test]
async fn compaction_changes_no_sample_and_late_ones_join_their_chunk() -> Result<()> {
    let (store, agent) = world().await?;
    let other = TestAgent::new(&store).await?;
    let of = |seq: i64, minutes: i64, disks: &[(&str, i64)]| {
        let mut of = sample(seq, after(hours_ago(3), minutes * MINUTE));
        of.sampled_at += jiff::SignedDuration::from_micros(seq * 7 + 1);
        of.disks = disks.iter().map(|(name, used)| disk(name, *used)).collect();
        of
    };
    let two: &[(&str, i64)] = &[("/", 10), ("/a %s \"b\"\\", 20)];
    let odd: &[(&str, i64)] = &[("/%1$s", 30), ("/a %s \"b\"\\", 20), ("/", 10)];
    let deliveries = [
        vec![of(1, 1, two), of(2, 2, two), of(3, 3, &[]), of(4, 0, &[])],
        vec![of(5, 70, two), of(6, 71, &[("/", 10)]), of(7, 59, two)],
        vec![of(8, 2, two), of(9, 61, &[]), of(10, 119, odd)],
    ];
    for delivery in &deliveries {
        agent.store(&store, delivery).await?;
        other.store(&store, delivery).await?;
        let all = store.sql(ALL).await?;
        assert_eq!(compact(&store).await?, 2 * delivery.len() as i64);
        assert_eq!(store.sql(ALL).await?, all);
        assert!(store.sql(CHUNKS_AND_ROWS).await?.starts_with("0 0 "));
    }
    check(&store, agent.host, &deliveries.concat()).await?;
    check_values(&store, agent.host, &deliveries.concat()).await?;
    let chunks = "SELECT count(*) FROM sample_chunks";
    assert_eq!(store.sql(chunks).await?, "12", "chunks are merged");
    assert_eq!(compact(&store).await?, 0, "nothing is left");
    Ok(())
}

/// What `host_chunks` has and `host_metrics` has not, the opposite, and how many samples both have.
const CHUNKS_AND_ROWS: &str = "
    WITH arrays AS (
        SELECT c.hour, u.sampled_at, c.agent_id, u.seq, u.cpu_percent::float8, u.load_1m::float8, u.load_5m::float8, u.load_15m::float8, u.memory_used_bytes,
               u.memory_total_bytes, u.swap_used_bytes, u.swap_total_bytes, u.uptime_seconds, u.process_count::bigint, u.network_rx_bytes, u.network_tx_bytes,
               (SELECT coalesce(jsonb_agg(jsonb_build_array(d.mount_point, c.disk_bytes[(2 * d.n - 2) * cardinality(c.seq) + u.i],
                                                            c.disk_bytes[(2 * d.n - 1) * cardinality(c.seq) + u.i]) ORDER BY d.n), '[]')
                  FROM unnest(c.mount_points) WITH ORDINALITY d(mount_point, n)) AS disks
          FROM host_vitals v
         CROSS JOIN LATERAL host_chunks(v.host_id, '-infinity', 'infinity') c
         CROSS JOIN LATERAL unnest(c.sampled_at, c.seq, c.cpu_percent, c.load_1m, c.load_5m, c.load_15m, c.memory_used_bytes, c.memory_total_bytes,
                                   c.swap_used_bytes, c.swap_total_bytes, c.uptime_seconds, c.process_count, c.network_rx_bytes, c.network_tx_bytes)
                    WITH ORDINALITY u(sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes, memory_total_bytes,
                                      swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, i)),
    rows AS (
        SELECT hour, sampled_at, agent_id, seq, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes,
               memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes,
               (SELECT coalesce(jsonb_agg(jsonb_build_array(d.disk -> 'mount_point', d.disk -> 'used_bytes', d.disk -> 'total_bytes') ORDER BY d.n), '[]')
                  FROM jsonb_array_elements(disks) WITH ORDINALITY d(disk, n)) AS disks
          FROM host_metrics)
    SELECT concat_ws(' ', (SELECT count(*) FROM (TABLE arrays EXCEPT ALL TABLE rows) more), (SELECT count(*) FROM (TABLE rows EXCEPT ALL TABLE arrays) less),
                     (SELECT count(*) FROM (TABLE rows INTERSECT ALL TABLE arrays) same))";

/// Of chunks and of rows, and of samples that name other disks than the ones before: a chunk then has no consecutive numbers.
#[tokio::test]
async fn samples_are_read_as_arrays_wherever_they_are() -> Result<()> {
    let (store, agent) = world().await?;
    let with_disks = |seq: i64, names: &[&str]| {
        let mut sample = sample(seq, after(hours_ago(4), seq * 20 * MINUTE));
        sample.disks = names.iter().map(|name| disk(name, seq)).collect();
        with_parts(sample, vec![part(PartKind::InterfaceRx, "eth0", seq)])
    };
    let samples = [
        with_disks(1, &["/"]),
        with_disks(2, &["/", "/srv"]),
        with_disks(3, &["/", "/srv"]),
        with_disks(4, &["/"]),
        with_disks(5, &["/", "/srv"]),
        with_disks(6, &[]),
        with_disks(7, &["/srv", "/"]),
    ];
    agent.store(&store, &samples[..5]).await?;
    assert_eq!(store.sql(CHUNKS_AND_ROWS).await?, "0 0 5", "rows");
    compact(&store).await?;
    agent.store(&store, &samples[5..]).await?;
    assert_eq!(store.sql(CHUNKS_AND_ROWS).await?, "0 0 7", "both");
    compact(&store).await?;
    assert_eq!(store.sql(CHUNKS_AND_ROWS).await?, "0 0 7", "chunks");
    let span = format!(
        "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM host_chunks('{}', '{}', '{}')",
        agent.host, samples[3].sampled_at, samples[4].sampled_at
    );
    assert_eq!(store.sql(&span).await?, "{3,5} {4}", "the hour of both");
    let from = samples[1].sampled_at;
    let plotted = store.console_samples(agent.host, from).await?;
    assert_eq!(plotted.seq, [2, 3, 4, 5, 6, 7]);
    let used = plotted.disks.iter().map(|disk| {
        let gibibytes = disk.used_bytes.iter().map(|used| used >> 30);
        (&*disk.mount_point, gibibytes.collect())
    });
    let used: BTreeMap<&str, Vec<i64>> = used.collect();
    assert_eq!(used["/"], [2, 3, 4, 5, 0, 7]);
    assert_eq!(used["/srv"], [2, 3, 0, 5, 0, 7]);
    Ok(())
}

/// Also of the days that are made later.
#[tokio::test]
async fn chunks_are_compressed_fast_and_analysed_without_their_arrays() -> Result<()> {
    let (store, _) = world().await?;
    store.partitions_create(2 * DAY).await?;
    let has_lz4 =
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'";
    let arrays = "SELECT concat_ws(' ', bool_and(a.attstattarget = 0), bool_and((a.attcompression = 'l') = (a.attname !~ '^(parts_|process_count)')))
                    FROM pg_inherits JOIN pg_attribute a ON a.attrelid = inhrelid JOIN pg_type t ON t.oid = a.atttypid
                   WHERE inhparent = 'sample_chunks'::regclass AND a.attnum > 0 AND (t.typcategory = 'A' OR t.typname = 'bytea')";
    let fast = store.sql(has_lz4).await?;
    let found = store.sql(arrays).await?;
    assert_eq!(found, if fast == "t" { "t t" } else { "t f" });
    Ok(())
}

/// Whoever seals an hour waits for the writers of it; those that come later write into another one.
#[tokio::test]
async fn an_hour_is_sealed_after_its_writers_and_takes_no_more_rows() -> Result<()> {
    let (store, agent) = world().await?;
    let taken = "SELECT extract(epoch FROM sample_hour_take())::bigint";
    let before: i64 = store.sql(taken).await?.parse()?;
    let mut writer = store.connect().await?;
    let open = writer.transaction().await?;
    open.batch_execute("SELECT sample_hour_take()").await?;
    agent.store(&store, &[sample(1, hours_ago(1))]).await?; // Another writer does not wait.
    hour_passes(&store).await?;
    assert!(store.hours_seal().await.is_err(), "sealed below a writer");
    let sealed = "SELECT count(*) FROM sample_hours WHERE sealed";
    assert_eq!(store.sql(sealed).await?, "0");
    open.commit().await?;
    assert_eq!(store.hours_seal().await?, 1);
    agent.store(&store, &[sample(2, hours_ago(1))]).await?;
    let hour = "SELECT extract(epoch FROM max(arrived_hour))::bigint FROM samples_open";
    assert_eq!(store.sql(hour).await?, (before + 3600).to_string());
    assert_eq!(store.hours_seal().await?, 0, "the newest hour stays open");
    store.sql("UPDATE sample_hours SET sealed = true").await?;
    let range = [agent.range(&[sample(3, hours_ago(1))], &[])];
    let error = store.samples_append(&range).await.unwrap_err();
    assert!(!error.is_data_error(), "no sample is to blame: {error:?}");
    store.sql("UPDATE sample_hours SET sealed = false").await?;
    assert_eq!(store.samples_append(&range).await?[0].acked_seq, 3);
    Ok(())
}

/// The clock goes back by hours, and nobody makes new ones: samples are stored all the same.
#[tokio::test]
async fn a_clock_that_steps_back_stops_no_writer() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(1))]).await?;
    compact(&store).await?;
    set_clock(&store, "now() - interval '5 hours'").await?;
    assert_eq!(store.hours_seal().await?, 0);
    agent.store(&store, &[sample(2, hours_ago(1))]).await?;
    assert_eq!(store.sql(SEEN).await?, "2 2 2");
    Ok(())
}

/// Weeks ahead for a while: the samples of that time are compacted as soon as there is another hour, which is not held up.
#[tokio::test]
async fn hours_of_a_clock_that_was_ahead_do_not_block_sealing() -> Result<()> {
    let (store, agent) = world().await?;
    let clock = async |ahead: &str| {
        set_clock(&store, &format!("now() + interval '{ahead}'")).await?;
        store.hours_create().await?;
        anyhow::Ok(store.hours_seal().await?)
    };
    clock("20 days").await?;
    agent.store(&store, &[sample(1, hours_ago(1))]).await?;
    assert_eq!(clock("0").await?, 0, "no other hour is open");
    agent.store(&store, &[sample(2, hours_ago(1))]).await?;
    clock("4 hours").await?;
    agent.store(&store, &[sample(3, hours_ago(1))]).await?;
    clock("5 hours").await?;
    assert_eq!(compact_sealed(&store, COMPACTION_STEP).await?, 3);
    store.hours_drop(&store.direct()?).await?;
    store.hours_prune().await?;
    let left = "SELECT count(*) FROM sample_hours WHERE arrived_hour > now() + interval '10 hours'";
    assert_eq!(store.sql(left).await?, "0", "that time will come");
    assert_eq!(store.sql(SEEN).await?, "3 3 3");
    Ok(())
}

/// A snapshot that is older than the chunks of an hour needs its rows.
#[tokio::test]
async fn an_hour_is_dropped_when_no_snapshot_needs_it_or_after_a_day() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(1))]).await?;
    let reader = store.connect().await?;
    let repeatable = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
    reader.batch_execute(repeatable).await?;
    close(&store).await?;
    assert_eq!(compact_sealed(&store, COMPACTION_STEP).await?, 1);
    let direct = store.direct()?;
    assert_eq!(store.hours_drop(&direct).await?.len(), 0);
    let count = "SELECT count(*) FROM host_metrics";
    assert_eq!(reader.query_one(count, &[]).await?.get::<_, i64>(0), 1);
    reader.batch_execute("COMMIT").await?;
    let old = "UPDATE sample_hours SET finished_at = now() - interval '25 hours' WHERE finished_at IS NOT NULL";
    let before = "UPDATE sample_hours SET finished_xid = pg_current_xact_id()::xid WHERE finished_at IS NOT NULL";
    reader.batch_execute(repeatable).await?;
    store.sql(before).await?;
    assert_eq!(store.hours_drop(&direct).await?.len(), 0);
    store.sql(old).await?;
    assert_eq!(store.hours_drop(&direct).await?.len(), 1);
    assert_eq!(store.sql(SEEN).await?, "1 1 1");
    Ok(())
}

/// Samples of a day that retention has dropped would be dropped with the next pass.
#[tokio::test]
async fn samples_older_than_the_kept_days_end_with_their_hour() -> Result<()> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    let agent = TestAgent::new(&store).await?;
    let samples = [sample(1, hours_ago(24 * 9)), sample(2, hours_ago(1))];
    agent.store(&store, &samples).await?;
    assert_eq!(compact(&store).await?, 1);
    assert_eq!(store.sql("SELECT seq FROM host_metrics").await?, "2");
    Ok(())
}
