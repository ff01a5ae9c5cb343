//! Hosts with an active agent each, and samples for them.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use svc_store::{AgentId, COMPACTION_STEP, DatabaseUrl, DiskRow, GapRow, HostId, Range, SampleRow};
use uuid::Uuid;

use crate::support::{TestStore, migrated};

pub const DAY: Duration = Duration::from_hours(24);

#[derive(Clone, Copy, Debug)]
pub struct TestAgent {
    pub host: HostId,
    pub id: AgentId,
}

impl TestAgent {
    /// Inserts a new host with an active agent.
    pub async fn new(store: &TestStore) -> Result<TestAgent> {
        let (host, agent) = (Uuid::now_v7(), Uuid::now_v7());
        let sql = format!(
            "INSERT INTO hosts (id, hostname) VALUES ('{host}', 'web-{host}');
             INSERT INTO agents (id, host_id, key, status) VALUES ('{agent}', '{host}', sha256('{agent}'), 'active')"
        );
        store.sql(&sql).await?;
        Ok(TestAgent {
            host: HostId(host),
            id: AgentId(agent),
        })
    }

    pub async fn many(store: &TestStore, count: usize) -> Result<Vec<TestAgent>> {
        let mut agents = Vec::new();
        for _ in 0..count {
            agents.push(TestAgent::new(store).await?);
        }
        Ok(agents)
    }

    /// Like `many`, in one statement: for tens of thousands.
    pub async fn many_at_once(store: &TestStore, count: usize) -> Result<Vec<TestAgent>> {
        let sql = format!(
            "CREATE TEMP TABLE new AS SELECT gen_random_uuid() AS host, gen_random_uuid() AS agent FROM generate_series(1, {count});
             INSERT INTO hosts (id, hostname) SELECT host, 'web-' || host FROM new;
             INSERT INTO agents (id, host_id, key, status) SELECT agent, host, sha256(agent::text::bytea), 'active' FROM new;
             SELECT host, agent FROM new"
        );
        let rows = store.sql(&sql).await?;
        let agent = |line: &str| {
            let (host, id) = line.split_once('|').context("two ids")?;
            Ok(TestAgent {
                host: HostId(host.parse()?),
                id: AgentId(id.parse()?),
            })
        };
        rows.lines().map(agent).collect()
    }

    /// A range of samples and gaps whose numbers are contiguous.
    pub fn range(&self, samples: &[SampleRow], gaps: &[GapRow]) -> Range {
        let firsts = samples.iter().map(|s| s.seq);
        let first = firsts.chain(gaps.iter().map(|g| g.first_seq)).min();
        let lasts = samples.iter().map(|s| s.seq);
        let last = lasts.chain(gaps.iter().map(|g| g.last_seq)).max();
        Range {
            agent_id: self.id,
            host_id: self.host,
            first_seq: first.unwrap_or(1),
            last_seq: last.unwrap_or(0),
            samples: samples.to_vec(),
            gaps: gaps.to_vec(),
        }
    }

    /// Appends these samples to the history.
    pub async fn store(&self, store: &TestStore, samples: &[SampleRow]) -> Result<()> {
        store.samples_append(&[self.range(samples, &[])]).await?;
        Ok(())
    }
}

/// A migrated database with partitions and one agent.
pub async fn world() -> Result<(TestStore, TestAgent)> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    let agent = TestAgent::new(&store).await?;
    Ok((store, agent))
}

/// Lets an hour pass on the clock by which samples arrive.
pub async fn hour_passes(store: &TestStore) -> Result<()> {
    let sql = "
        CREATE TABLE IF NOT EXISTS hours_passed (n integer GENERATED ALWAYS AS IDENTITY);
        INSERT INTO hours_passed DEFAULT VALUES;
        CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS
            'SELECT now() + (SELECT count(*) FROM hours_passed) * interval ''1 hour'''";
    store.sql(sql).await?;
    Ok(())
}

/// Closes the running hour, compacts all closed hours and drops them, as the service does. Returns how
/// many samples were compacted.
pub async fn compact(store: &TestStore) -> Result<i64> {
    hour_passes(store).await?;
    store.hours_create().await?;
    store.hours_seal().await?;
    let samples = compact_sealed(store, COMPACTION_STEP).await?;
    let direct = DatabaseUrl::parse(store.url())?;
    store.hours_drop(&direct).await?;
    Ok(samples)
}

/// Compacts what is sealed, in steps of so many rows.
pub async fn compact_sealed(store: &TestStore, rows: i64) -> Result<i64> {
    let mut samples = 0;
    loop {
        let step = store.compaction_step(rows).await?;
        samples += step.samples;
        if !step.more {
            return Ok(samples);
        }
    }
}

/// The beginning of an hour, this many hours before the current one.
pub fn hours_ago(hours: i64) -> Timestamp {
    let now = Timestamp::now().as_second();
    Timestamp::from_second(now - now.rem_euclid(3600) - hours * 3600).unwrap()
}

pub fn after(at: Timestamp, millis: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_millis(millis)).unwrap()
}

pub fn sample(seq: i64, sampled_at: Timestamp) -> SampleRow {
    SampleRow {
        seq,
        sampled_at,
        cpu_percent: 12.5,
        load: [0.5, 0.4, 0.3],
        memory_used_bytes: 3 << 30,
        memory_total_bytes: 8 << 30,
        swap_used_bytes: 1 << 20,
        swap_total_bytes: 2 << 30,
        uptime_seconds: 86_400 + seq * 30,
        process_count: 240,
        network_rx_bytes: 1_000 * seq,
        network_tx_bytes: 100 * seq,
        disks: vec![disk("/", 41), disk("/var", 63)],
        optional: None,
    }
}

pub fn disk(mount_point: &str, percent: i64) -> DiskRow {
    DiskRow {
        mount_point: mount_point.into(),
        device: "/dev/nvme0n1p2".into(),
        fs_type: "ext4".into(),
        total_bytes: 100 << 30,
        used_bytes: percent << 30,
    }
}
