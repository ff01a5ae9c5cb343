//! Measures what storing a sample costs PostgreSQL: the numbers of docs/decisions.md.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::Range;

use crate::{
    fixtures::{DAY, TestAgent, after, hours_ago, sample},
    support::TestStore,
};

const HOSTS: usize = 10_000;
const BATCHES: [usize; 4] = [7, 33, 333, 1_000];
/// Seconds of CPU of a measurement, about: the kernel counts in hundredths.
const SAMPLES: [usize; 4] = [7_000, 20_000, 40_000, 40_000];

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
    let store = TestStore::open(&server.url("postgres"), 4)?;
    store.migrate().await?;
    store.partitions_create(DAY).await?;
    let agents = TestAgent::many_at_once(&store, HOSTS).await?;
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
        store.samples_append(&batch(1000)).await?;
    }
    store.sql("VACUUM ANALYZE").await?;
    for (size, samples) in BATCHES.into_iter().zip(SAMPLES) {
        for _ in 0..10 {
            store.samples_append(&batch(size)).await?;
        }
        settle(&store).await?;
        let (cpu_before, wal_before) = (cpu(server.data_dir())?, wal(&store).await?);
        let rounds = samples / size;
        for _ in 0..rounds {
            store.samples_append(&batch(size)).await?;
        }
        let samples = (rounds * size) as f64;
        let micros = 1e6 * (cpu(server.data_dir())? - cpu_before) / samples;
        let bytes = (wal(&store).await? - wal_before) / samples;
        println!("batches of {size}: {micros:.1} µs of CPU and {bytes:.0} bytes of WAL a sample");
    }
    Ok(())
}
