//! A day of samples that was there before the scenario began: written with one statement, and read through the
//! public interface, whichever version of the service has migrated the schema.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::lab::Lab;

const HOSTS: &str = "FROM hosts WHERE hostname LIKE 'history-%'";

/// Active agents on hosts of their own, with samples evenly over the last 24 hours and books that say so. The samples go
/// where the schema's own version puts them: into `host_metrics`.
pub async fn fill(lab: &Lab, hosts: u32, samples: u32) -> anyhow::Result<u64> {
    let sql = format!(
        r#"BEGIN;
        INSERT INTO hosts (hostname) SELECT 'history-' || n FROM generate_series(1, {hosts}) n;
        INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' {HOSTS};
        INSERT INTO agent_state (agent_id) SELECT id FROM agents ON CONFLICT DO NOTHING;
        UPDATE agent_state SET acked_seq = {samples}, stored_count = {samples}
         WHERE agent_id IN (SELECT id FROM agents WHERE host_id IN (SELECT id {HOSTS}));
        INSERT INTO host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                                  memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                                  uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, disks)
        SELECT host_id, id, now() - ({samples} - n + 1) * interval '1 day' / {samples}, n, n % 100, 1, 1, 1,
               1000000 * n, 8000000000, 0, 0, n, 200, 1000 * n, 1000 * n,
               '[{{"mount_point": "/", "device": "/dev/vda1", "fs_type": "ext4", "total_bytes": 250000000000, "used_bytes": 90000000000}},
                 {{"mount_point": "/var", "device": "/dev/vdb1", "fs_type": "xfs", "total_bytes": 500000000000, "used_bytes": 110000000000}}]'
          FROM agents, generate_series(1::bigint, {samples}) n WHERE host_id IN (SELECT id {HOSTS});
        COMMIT"#
    );
    lab.sql(&sql).await?;
    lab.sql("CHECKPOINT").await?;
    Ok(u64::from(hosts) * u64::from(samples))
}

/// Fails unless all samples are readable. Returns how long it took to read those of one host.
pub async fn check(lab: &Lab, filled: u64) -> anyhow::Result<Duration> {
    let readable =
        format!("SELECT count(*) FROM host_metrics WHERE host_id IN (SELECT id {HOSTS})");
    let readable = lab.number(&readable).await?;
    ensure!(
        readable == filled,
        "{readable} of {filled} samples of history are readable"
    );
    let began = Instant::now();
    let one = format!(
        "SELECT count(disks) FROM host_metrics WHERE host_id = (SELECT id {HOSTS} LIMIT 1)"
    );
    lab.number(&one).await?;
    Ok(began.elapsed())
}
