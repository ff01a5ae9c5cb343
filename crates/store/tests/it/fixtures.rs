//! Hosts with an active agent each, samples and gaps for them, and the passing of hours.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use jiff::{SignedDuration, Timestamp};
use svc_store::{
    AgentId, COMPACTION_STEP, DiskRow, GapKind, GapRow, HostFacts, HostId, OptionalVitals,
    PartKind, PartRow, Range, SampleRow, SessionOpen,
};

use crate::support::{TestStore, migrated};

pub const DAY: Duration = Duration::from_hours(24);

/// In milliseconds.
pub const MINUTE: i64 = 60_000;
pub const HOUR: i64 = 60 * MINUTE;

/// The greatest integer that an agent may send.
pub const MOST: i64 = 1 << 62;

#[derive(Clone, Copy, Debug)]
pub struct TestAgent {
    pub host: HostId,
    pub id: AgentId,
}

impl TestAgent {
    /// Inserts a new host with an active agent.
    pub async fn new(store: &TestStore) -> Result<TestAgent> {
        let agents = TestAgent::many(store, 1).await?;
        agents.into_iter().next().context("an agent")
    }

    /// New hosts with an active agent each, in one statement.
    pub async fn many(store: &TestStore, count: usize) -> Result<Vec<TestAgent>> {
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

    /// A request to open its session now.
    pub fn session(&self) -> SessionOpen {
        let now = Timestamp::now();
        let key = digest(&SHA256, self.id.to_string().as_bytes());
        let hex = key.as_ref().iter().map(|byte| format!("{byte:02x}"));
        SessionOpen {
            agent_id: self.id,
            key: hex.collect(),
            boot_id: "boot".to_owned(),
            run_id: "run".to_owned(),
            version: "1.0.0".to_owned(),
            capabilities: Vec::new(),
            facts: HostFacts::default(),
            address: [127, 0, 0, 1].into(),
            skew_ms: None,
            requested_at: now,
            valid_until: now + SignedDuration::from_mins(1),
            elsewhere: None,
        }
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

/// Replaces the clock by which samples arrive.
pub async fn set_clock(store: &TestStore, now: &str) -> Result<()> {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT {now} $$"
    );
    store.sql(&sql).await?;
    Ok(())
}

/// Lets an hour pass on the clock by which samples arrive.
pub async fn hour_passes(store: &TestStore) -> Result<()> {
    let sql = "
        CREATE TABLE IF NOT EXISTS hours_passed (n integer GENERATED ALWAYS AS IDENTITY);
        INSERT INTO hours_passed DEFAULT VALUES";
    store.sql(sql).await?;
    let now = "now() + (SELECT count(*) FROM hours_passed) * interval '1 hour'";
    set_clock(store, now).await
}

/// Closes the running hour without compacting it.
pub async fn close(store: &TestStore) -> Result<()> {
    hour_passes(store).await?;
    store.hours_create().await?;
    store.hours_seal().await?;
    Ok(())
}

/// Closes the running hour, compacts all closed hours and drops them, as the service does. Returns how
/// many samples were compacted.
pub async fn compact(store: &TestStore) -> Result<i64> {
    close(store).await?;
    let samples = compact_sealed(store, COMPACTION_STEP).await?;
    store.hours_drop(&store.direct()?).await?;
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

/// Samples of the hour before this one with these numbers, a millisecond after each other.
pub fn samples(seqs: RangeInclusive<i64>) -> Vec<SampleRow> {
    let one = |seq| sample(seq, after(hours_ago(1), seq));
    seqs.map(one).collect()
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

pub fn part(kind: PartKind, name: &str, value: i64) -> PartRow {
    PartRow {
        kind,
        name: name.into(),
        value,
    }
}

/// The sample with these parts besides its disks.
pub fn with_parts(sample: SampleRow, parts: Vec<PartRow>) -> SampleRow {
    let optional = OptionalVitals {
        parts,
        ..OptionalVitals::default()
    };
    SampleRow {
        optional: Some(Box::new(optional)),
        ..sample
    }
}

pub fn gap(seqs: RangeInclusive<i64>, kind: GapKind) -> GapRow {
    GapRow {
        first_seq: *seqs.start(),
        last_seq: *seqs.end(),
        kind,
        reason: "lost".into(),
    }
}
