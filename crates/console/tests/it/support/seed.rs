//! Hosts and their history, written straight to the database.

use anyhow::Result;
use svc_testkit::Site;

/// Hosts `web-000`, … with an active agent each; every third is offline.
pub async fn seed_hosts(site: &Site, count: u32) -> Result<()> {
    site.psql(&format!(
        "WITH new AS (
            INSERT INTO hosts (hostname, os, os_version, arch, memory_total_bytes, memory_used_bytes, cpu_percent, load_1m,
                               vitals_at, fullest_disk_percent, fullest_disk_mount_point, labels, ip_addresses, cpu_count,
                               uptime_seconds, process_count, disks)
            SELECT 'web-' || to_char(n, 'FM000'), 'Debian GNU/Linux', '12', 'x86_64', 16::bigint << 30, (n % 16)::bigint << 30,
                   n % 100, 0.5, now(), n % 100, '/', jsonb_build_object('env', CASE n % 2 WHEN 0 THEN 'prod' ELSE 'test' END),
                   ARRAY['10.0.0.' || n], 8, 86400 * n, 100 + n,
                   '[{{\"mount_point\": \"/\", \"device\": \"/dev/sda1\", \"fs_type\": \"ext4\", \"total_bytes\": 1000000, \"used_bytes\": 420000}}]'
              FROM generate_series(0, {count} - 1) AS n RETURNING id, hostname),
         agents AS (
            INSERT INTO agents (host_id, key, status, version, decided_by)
            SELECT id, sha256(hostname::bytea), 'active', '0.1.0', 'test' FROM new RETURNING id, host_id)
         SELECT count(*) FROM agents"
    ))
    .await?;
    site.psql(
        "UPDATE host_vitals v
            SET vitals_at = h.vitals_at, cpu_percent = h.cpu_percent, load_1m = h.load_1m,
                memory_used_bytes = h.memory_used_bytes, memory_total_bytes = h.memory_total_bytes,
                uptime_seconds = h.uptime_seconds, process_count = h.process_count,
                fullest_disk_percent = h.fullest_disk_percent, fullest_disk_mount_point = h.fullest_disk_mount_point
           FROM hosts h WHERE h.id = v.host_id",
    )
    .await?;
    site.psql(
        "UPDATE agent_state s SET presence = 'online', cause = 'connected'
           FROM agents a JOIN hosts h ON h.id = a.host_id
          WHERE a.id = s.agent_id AND right(h.hostname, 3)::int % 3 <> 0",
    )
    .await?;
    Ok(())
}

/// A day of samples for every tenth host, with a gap, a note and changes of presence.
pub async fn seed_history(site: &Site) -> Result<()> {
    site.psql(
        "SELECT metrics_partitions_ensure('7 days');
         SELECT rollups_partition_ensure(now()), rollups_partition_ensure(now() - interval '24 hours');
         INSERT INTO host_metrics
         SELECT h.id, now() - make_interval(secs => 30 * (2880 - n)), a.id, n,
                40 + 30 * sin(n / 180.0) + 8 * sin(n / 7.0), 2 + 1.5 * sin(n / 200.0), 2, 2,
                ((7 + 2 * sin(n / 400.0)) * 1073741824)::bigint, 16::bigint << 30, 0, 0, n * 30, 180,
                n * 900000::bigint + (300000 * sin(n / 50.0))::bigint, n * 300000::bigint,
                jsonb_build_array(jsonb_build_object('mount_point', '/', 'total_bytes', 100000::bigint << 20, 'used_bytes', (42000 + n)::bigint << 20),
                                  jsonb_build_object('mount_point', '/var', 'total_bytes', 100000::bigint << 20, 'used_bytes', (70000 + 5 * (n % 700))::bigint << 20))
           FROM hosts h JOIN agents a ON a.host_id = h.id, generate_series(1, 2880) AS n
          WHERE h.hostname IN ('web-002', 'web-042') AND n NOT BETWEEN 1200 AND 1400 AND n NOT BETWEEN 2800 AND 2815;
         INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
         SELECT a.id, 1200, 1400, 'declared', 'the spool was full' FROM agents a JOIN hosts h ON h.id = a.host_id WHERE h.hostname = 'web-042';
         UPDATE agent_state s SET acked_seq = 2880, stored_count = 2663, gap_count = 217
           FROM agents a JOIN hosts h ON h.id = a.host_id WHERE a.id = s.agent_id AND h.hostname = 'web-042';
         INSERT INTO host_events (at, host_id, kind, actor, text)
         SELECT now() - interval '25 minutes', id, 'note', 'agent web-042', 'deployed 4.2' FROM hosts WHERE hostname = 'web-042';
         INSERT INTO agent_events (at, agent_id, kind, from_status, to_status, reason)
         SELECT now() - ago, a.id, 'presence', CASE up WHEN 'online' THEN 'offline' ELSE 'online' END, up, why
           FROM agents a JOIN hosts h ON h.id = a.host_id,
                (VALUES (interval '20 hours', 'online', 'connected'), (interval '14 hours', 'offline', 'lost'),
                        (interval '12 hours 20 minutes', 'online', 'connected')) AS changes(ago, up, why)
          WHERE h.hostname = 'web-042'",
    )
    .await?;
    Ok(())
}

/// Makes the hosts, but for those with samples, look like a fleet: several kinds in three places, most of them online, each
/// with a day of rollups.
pub async fn seed_fleet(site: &Site) -> Result<()> {
    site.psql(
        "CREATE TEMP TABLE fleet AS
         SELECT id, right(hostname, 3)::int AS n, 8 + right(hostname, 3)::int * 37 % 61 AS cpu FROM hosts
          WHERE hostname NOT IN ('web-002', 'web-042');
         UPDATE hosts h
            SET hostname = (ARRAY['db', 'cache', 'web', 'queue'])[1 + n % 4] || '-' || to_char(n, 'FM000'),
                os = (ARRAY['Debian GNU/Linux', 'Ubuntu', 'Rocky Linux'])[1 + n % 3], os_version = (ARRAY['12', '24.04', '9'])[1 + n % 3],
                labels = jsonb_build_object('env', CASE n % 5 WHEN 0 THEN 'test' ELSE 'prod' END, 'dc', (ARRAY['ams', 'fra', 'nyc'])[1 + n / 4 % 3])
           FROM fleet WHERE fleet.id = h.id;
         UPDATE host_vitals v
            SET cpu_percent = cpu, memory_used_bytes = v.memory_total_bytes / 100 * (20 + n * 53 % 70),
                fullest_disk_percent = CASE n WHEN 25 THEN 93 ELSE 10 + n * 29 % 71 END
           FROM fleet WHERE fleet.id = v.host_id;
         UPDATE agent_state s
            SET presence = CASE n % 13 WHEN 5 THEN 'offline' ELSE 'online' END, cause = CASE n % 13 WHEN 5 THEN 'lost' ELSE 'connected' END,
                presence_since = now() - n * 7919 % 400 * interval '1 hour'
           FROM fleet JOIN agents a ON a.host_id = fleet.id WHERE a.id = s.agent_id;
         INSERT INTO host_rollups (
            host_id, hour, first_at, last_at, counters_from, cpu_percent_min, cpu_percent_avg, cpu_percent_max,
            load_1m_min, load_1m_avg, load_1m_max, load_5m_min, load_5m_avg, load_5m_max, load_15m_min, load_15m_avg, load_15m_max,
            memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max, memory_total_bytes,
            swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes,
            process_count_min, process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase, sample_count)
         SELECT id, hour, hour, hour, hour, 0, least(greatest(cpu + 16 * sin((n + ago) / 3.1) + 9 * sin(n * ago), 1), 99), 100,
                0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 3, 0, 0, 120
           FROM fleet, generate_series(0, 23) AS ago, LATERAL (SELECT date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour) hours",
    )
    .await?;
    Ok(())
}
