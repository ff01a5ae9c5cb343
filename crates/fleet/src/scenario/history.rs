//! A day of samples that was there before the scenario began: written by SQL, and read through the public interface.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::lab::Lab;

const HOSTS: &str = "FROM hosts WHERE hostname LIKE 'history-%'";

/// Active agents on hosts of their own, with samples evenly over the last 24 hours and books that say so.
pub async fn fill(lab: &Lab, hosts: u32, samples: u32) -> anyhow::Result<u64> {
    let sql = format!(
        r#"BEGIN;
        INSERT INTO hosts (hostname) SELECT 'history-' || n FROM generate_series(1, {hosts}) n;
        INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' {HOSTS};
        INSERT INTO agent_state (agent_id) SELECT id FROM agents ON CONFLICT DO NOTHING;
        INSERT INTO agent_numbers (agent_id) SELECT id FROM agents WHERE host_id IN (SELECT id {HOSTS}) ON CONFLICT DO NOTHING;
        UPDATE agent_state SET acked_seq = {samples}, stored_count = {samples}
         WHERE agent_id IN (SELECT id FROM agents WHERE host_id IN (SELECT id {HOSTS}));
        INSERT INTO sample_shapes (shape, parts)
        VALUES (md5('history')::uuid, '[{{"kind": "disk_used", "name": "/", "device": "/dev/vda1", "fs_type": "ext4"}}, {{"kind": "disk_total", "name": "/"}},
                                        {{"kind": "disk_used", "name": "/var", "device": "/dev/vdb1", "fs_type": "xfs"}}, {{"kind": "disk_total", "name": "/var"}}]')
            ON CONFLICT DO NOTHING;
        INSERT INTO samples_open (arrived_hour, host_no, agent_no, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                                  memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                                  uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, shape, parts)
        SELECT (SELECT sample_hour_take()), host_no, agent_no, now() - ({samples} - n + 1) * interval '1 day' / {samples}, n, n % 100, 1, 1, 1,
               1000000 * n, 8000000000, 0, 0, n, 200, 1000 * n, 1000 * n, md5('history')::uuid,
               '{{90000000000, 250000000000, 110000000000, 500000000000}}'
          FROM agents JOIN agent_numbers ON agent_id = id JOIN host_vitals USING (host_id), generate_series(1::bigint, {samples}) n
         WHERE host_id IN (SELECT id {HOSTS});
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
