//! Agents and instances written straight to the database, and ranges of samples for agents.

use anyhow::{Context, Result};
use svc_store::{AgentId, HostId, Range, SampleRow};

use crate::Site;

/// Inserts active agents, each on a host of its own, without registering them.
pub async fn seed(site: &Site, count: usize) -> Result<Vec<(AgentId, HostId)>> {
    let sql = format!(
        "WITH machines AS (INSERT INTO hosts (hostname) SELECT 'seed-' || n FROM generate_series(1, {count}) n RETURNING id)
         INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM machines;
         INSERT INTO agent_state (agent_id) SELECT id FROM agents ON CONFLICT DO NOTHING"
    );
    site.psql(&sql).await?;
    let rows = site.psql("SELECT id, host_id FROM agents").await?;
    let ids = |line: &str| {
        let (agent, host) = line.split_once('|').context("two columns")?;
        Ok((AgentId(agent.parse()?), HostId(host.parse()?)))
    };
    rows.lines().map(ids).collect()
}

/// The id of an instance that [`absent_instance`] records.
pub const ABSENT: &str = "00000000-0000-0000-0000-000000000001";
/// The key of the instances that are recorded already.
pub const SAME_KEY: &str = "(SELECT min(kid) FROM ingest_instances)";

/// SQL that records an instance that runs nowhere: the key that it signs with, and when its lease ends, from now.
pub fn absent_instance(kid: &str, lease: &str) -> String {
    format!(
        "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
         SELECT '{ABSENT}', {kid}, 'gone', '0', '', '', now() + interval '{lease}'"
    )
}

/// A range of plain samples.
pub fn range((agent_id, host_id): (AgentId, HostId), first_seq: i64, last_seq: i64) -> Range {
    Range {
        agent_id,
        host_id,
        first_seq,
        last_seq,
        samples: (first_seq..=last_seq).map(row).collect(),
        gaps: vec![],
    }
}

fn row(seq: i64) -> SampleRow {
    SampleRow {
        seq,
        sampled_at: jiff::Timestamp::now(),
        cpu_percent: 1.0,
        load: [0.1, 0.2, 0.3],
        memory_used_bytes: seq,
        memory_total_bytes: 8 << 30,
        uptime_seconds: seq,
        process_count: 100,
        network_rx_bytes: seq,
        network_tx_bytes: seq,
        ..SampleRow::default()
    }
}
