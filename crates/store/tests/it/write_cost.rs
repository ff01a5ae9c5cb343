//! Measures what storing a sample costs PostgreSQL, beside the statements of the previous version: the
//! numbers of docs/decisions.md.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::Range;

use crate::{
    fixtures::{DAY, TestAgent, after, hours_ago, sample},
    previous_version::Previous,
    support::TestStore,
};

const HOSTS: usize = 10_000;
const BATCHES: [usize; 4] = [7, 33, 333, 1_000];
/// Seconds of CPU of a measurement, about: the kernel counts in hundredths.
const SAMPLES: [usize; 4] = [7_000, 20_000, 40_000, 40_000];

/// Migrations of the previous version.
const PREVIOUS: &[&str] = &[
    include_str!("../../migrations/schema_migrations.sql"),
    include_str!("../../migrations/0001_instances.sql"),
    include_str!("../../migrations/0002_enrolment.sql"),
    include_str!("../../migrations/0003_sessions.sql"),
    include_str!("../../migrations/0004_metrics.sql"),
    include_str!("../../migrations/0005_rollups.sql"),
    include_str!("../../migrations/0006_dead_letters.sql"),
    include_str!("../../migrations/0007_held_streams.sql"),
    include_str!("../../migrations/0008_token_state.sql"),
    include_str!("../../migrations/0009_session_opens.sql"),
    include_str!("../../migrations/0010_enrolment_rules.sql"),
    include_str!("../../migrations/0011_identifier_claims.sql"),
    include_str!("../../migrations/0012_extra_kids.sql"),
    include_str!("../../migrations/0013_definers.sql"),
    include_str!("../../migrations/0014_rollups_set_aside.sql"),
    include_str!("../../migrations/0015_console.sql"),
];

enum Writer {
    Previous(Previous),
    Present(TestStore),
}

impl Writer {
    async fn append(&self, ranges: &[Range]) -> Result<()> {
        match self {
            Writer::Previous(previous) => previous.append(ranges).await,
            Writer::Present(store) => {
                store.samples_append(ranges).await?;
                Ok(())
            }
        }
    }
}

/// The seconds of CPU that a server has taken: its first process, the children that have ended, and those that live.
fn cpu(data_dir: &Path) -> Result<f64> {
    let pid = fs::read_to_string(data_dir.join("postmaster.pid"))?;
    let pid = pid.lines().next().context("a pid")?.to_owned();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let times = |pid: &str, fields: &[usize]| -> f64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields_of = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let numbers: Vec<f64> = fields_of.map(|n| n.parse().unwrap_or(0.0)).collect();
        fields.iter().filter_map(|field| numbers.get(*field)).sum()
    };
    let living: f64 = children
        .split_whitespace()
        .map(|pid| times(pid, &[11, 12]))
        .sum();
    Ok((times(&pid, &[11, 12, 13, 14]) + living) / 100.0)
}

async fn wal(store: &TestStore) -> Result<f64> {
    Ok(store
        .sql("SELECT pg_current_wal_lsn() - '0/0'")
        .await?
        .parse()?)
}

/// Everything that was written by now is on disk, and the next writes are not charged for it.
async fn settle(store: &TestStore) -> Result<()> {
    store.sql("CHECKPOINT").await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

#[tokio::test]
#[ignore = "measures: run by hand, on a quiet machine"]
async fn measure_the_cost_of_a_sample_in_batches() -> Result<()> {
    let mut options = PostgresOptions::production();
    options.settings.push(("autovacuum".into(), "off".into()));
    let server = Postgres::start(options).await?;
    server.create_database("previous", None).await?;
    let previous = TestStore::open(&server.url("previous"), 4)?;
    for migration in PREVIOUS {
        previous.sql(migration).await?;
    }
    previous
        .sql("SELECT metrics_partitions_ensure('1 day')")
        .await?;
    let present = TestStore::open(&server.url("postgres"), 4)?;
    present.migrate().await?;
    present.partitions_create(DAY).await?;
    for (name, store) in [("previous", &previous), ("present", &present)] {
        let agents = TestAgent::many_at_once(store, HOSTS).await?;
        let writer = match name {
            "previous" => Writer::Previous(Previous::new(store.connect().await?)),
            _ => Writer::Present(store.clone()),
        };
        let mut at = vec![0_i64; HOSTS];
        let mut next = 0;
        let mut batch = |size: usize| -> Vec<Range> {
            let one = |_| {
                let index = next % HOSTS;
                next += 7;
                at[index] += 1;
                let mut sample = sample(at[index], after(hours_ago(1), at[index] * 1000));
                sample.memory_used_bytes += (index as i64) << 12;
                agents[index].range(&[sample], &[])
            };
            (0..size).map(one).collect()
        };
        for _ in 0..2 * HOSTS / 1000 {
            writer.append(&batch(1000)).await?;
        }
        store.sql("VACUUM ANALYZE").await?;
        for (size, samples) in BATCHES.into_iter().zip(SAMPLES) {
            for _ in 0..10 {
                writer.append(&batch(size)).await?;
            }
            settle(store).await?;
            let (cpu_before, wal_before) = (cpu(server.data_dir())?, wal(store).await?);
            let rounds = samples / size;
            for _ in 0..rounds {
                writer.append(&batch(size)).await?;
            }
            let samples = (rounds * size) as f64;
            let micros = 1e6 * (cpu(server.data_dir())? - cpu_before) / samples;
            let bytes = (wal(store).await? - wal_before) / samples;
            println!(
                "{name}, batches of {size}: {micros:.1} µs of CPU and {bytes:.0} bytes of WAL a sample"
            );
        }
    }
    Ok(())
}
