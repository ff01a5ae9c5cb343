//! Two loops that show what a heartbeat costs in PostgreSQL alone, without the service.
//!
//! The *bare* loop stores samples with the store's own code, at the batch size and pace that were measured
//! with the service: the difference is what the service adds by leases, polling and rollups. The *minimal*
//! loop (`minimal.rs`) stores the same samples in the narrowest tables that can keep them: the difference
//! between the two loops is what our own statements cost above that.

use std::{ops::Range, time::Duration};

use jiff::Timestamp;
use svc_harness::SampleWriter;
use tokio::time::{Instant, sleep_until};

use super::minimal::{DISKS, Minimal};
use crate::lab::Lab;

/// The samples of a transaction before the measurement.
const WARM_UP: usize = 1_000;

/// The cost of a heartbeat in PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub struct SqlCost {
    pub batch: u64,
    pub per_second: f64,
    pub postgres_us: f64,
    pub wal_bytes: f64,
}

impl SqlCost {
    /// The first of [`super::load::COLUMNS`].
    pub fn figures(&self) -> Vec<f64> {
        vec![self.per_second, self.postgres_us, self.wal_bytes]
    }
}

/// How a loop runs: samples per transaction, samples per second, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub batch: u64,
    pub rate: f64,
    pub time: Duration,
}

/// Runs the bare loop on a lab whose instances are stopped.
pub async fn bare(lab: &Lab, schedule: Schedule) -> anyhow::Result<SqlCost> {
    let mut writer = SampleWriter::open(&lab.database_url(), DISKS).await?;
    let agents = writer.agents();
    let append = async |which| writer.append(which, &[Timestamp::now()]).await;
    repeated(lab, agents, schedule, append).await
}

/// Runs the minimal loop for as many agents as the lab has.
pub async fn minimal(lab: &Lab, schedule: Schedule) -> anyhow::Result<SqlCost> {
    let agents = lab.number("SELECT count(*) FROM agents").await? as usize;
    let mut minimal = Minimal::create(&lab.database_url(), agents).await?;
    let append = async |which| minimal.append(which, Timestamp::now()).await;
    repeated(lab, agents, schedule, append).await
}

/// Stores one sample for each agent in turn, batch by batch. The first sample of each is not measured: the list of its
/// disks is new then, and is stored with it.
async fn repeated(
    lab: &Lab,
    agents: usize,
    schedule: Schedule,
    mut append: impl AsyncFnMut(Range<usize>) -> anyhow::Result<()>,
) -> anyhow::Result<SqlCost> {
    let batch = schedule.batch.clamp(1, agents as u64);
    for start in (0..agents).step_by(WARM_UP) {
        append(start..(start + WARM_UP).min(agents)).await?;
    }
    let (before, began) = (lab.usage().await?, Instant::now());
    let mut done = 0;
    while began.elapsed() < schedule.time {
        let start = done as usize % agents;
        let end = (start + batch as usize).min(agents);
        append(start..end).await?;
        done += (end - start) as u64;
        sleep_until(began + Duration::from_secs_f64(done as f64 / schedule.rate)).await;
    }
    let (after, seconds) = (lab.usage().await?, began.elapsed().as_secs_f64());
    let each = |amount: u64| amount as f64 / done.max(1) as f64;
    Ok(SqlCost {
        batch,
        per_second: done as f64 / seconds,
        postgres_us: each(after.postgres.cpu_us - before.postgres.cpu_us),
        wal_bytes: each(after.wal_bytes - before.wal_bytes),
    })
}
