//! Hosts and their history, written straight to the database.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::{Context, Result};
use jiff::{Timestamp, ToSpan};
use svc_store::{AgentId, DiskRow, GapKind, GapRow, HostId, SampleRow};
use svc_testkit::{Site, eventually, range};

/// Hosts `web-000`, … with an active agent each; every third is offline.
pub async fn seed_hosts(site: &Site, count: u32) -> Result<()> {
    site.psql(&format!(
        "WITH new AS (
            INSERT INTO hosts (hostname, os, os_version, arch, memory_total_bytes, labels, ip_addresses, cpu_count)
            SELECT 'web-' || to_char(n, 'FM000'), 'Debian GNU/Linux', '12', 'x86_64', 16::bigint << 30,
                   jsonb_build_object('env', CASE n % 2 WHEN 0 THEN 'prod' ELSE 'test' END), ARRAY['10.0.0.' || n], 8
              FROM generate_series(0, {count} - 1) AS n RETURNING id, hostname),
         agents AS (
            INSERT INTO agents (host_id, key, status, version, decided_by)
            SELECT id, sha256(hostname::bytea), 'active', '0.1.0', 'test' FROM new RETURNING id, host_id)
         SELECT count(*) FROM agents;
         INSERT INTO sample_shapes (shape, parts)
         VALUES (md5('one disk')::uuid, '[{{\"kind\": \"disk_used\", \"name\": \"/\", \"device\": \"/dev/sda1\", \"fs_type\": \"ext4\"}},
                                          {{\"kind\": \"disk_total\", \"name\": \"/\"}}]');
         UPDATE host_vitals v
            SET vitals_at = now(), cpu_percent = n % 100, load_1m = 0.5, memory_used_bytes = (n % 16)::bigint << 30,
                memory_total_bytes = 16::bigint << 30, uptime_seconds = 86400 * n, process_count = 100 + n,
                fullest_disk_percent = n % 100, fullest_disk_mount_point = '/', shape = md5('one disk')::uuid, parts = '{{420000, 1000000}}'
           FROM hosts h, LATERAL (SELECT right(h.hostname, 3)::int AS n) numbers WHERE h.id = v.host_id;
         UPDATE agent_state s SET presence = 'online', cause = 'connected'
           FROM agents a JOIN hosts h ON h.id = a.host_id
          WHERE a.id = s.agent_id AND right(h.hostname, 3)::int % 3 <> 0"
    ))
    .await?;
    Ok(())
}

/// Stores a sample of every 30 seconds until now for a host of [`seed_hosts`], as the service does. Numbers in `lost` are a gap.
pub async fn seed_samples(
    site: &Site,
    hostname: &str,
    last: i64,
    lost: &[RangeInclusive<i64>],
    measured: impl Fn(&mut SampleRow),
) -> Result<()> {
    let ids = format!(
        "SELECT a.id, h.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE hostname = '{hostname}'"
    );
    let ids = site.psql(&ids).await?;
    let (agent, host) = ids.split_once('|').context("no such host")?;
    let ids = (AgentId(agent.parse()?), HostId(host.parse()?));
    let now = Timestamp::now();
    let mut all = range(ids, 1, last);
    all.samples
        .retain(|sample| !lost.iter().any(|lost| lost.contains(&sample.seq)));
    for sample in &mut all.samples {
        sample.sampled_at = now.checked_sub((30 * (last - sample.seq)).seconds())?;
        measured(sample);
    }
    all.gaps = lost.iter().map(gap).collect();
    let store = site.store()?;
    store
        .partitions_create(Duration::from_hours(7 * 24))
        .await?;
    store.samples_append(&[all]).await?;
    Ok(())
}

fn gap(lost: &RangeInclusive<i64>) -> GapRow {
    GapRow {
        first_seq: *lost.start(),
        last_seq: *lost.end(),
        kind: GapKind::Declared,
        reason: "the spool was full".into(),
    }
}

/// A disk of 100 GB.
pub fn disk(mount_point: &str, used_mib: i64) -> DiskRow {
    DiskRow {
        mount_point: mount_point.into(),
        device: String::new(),
        fs_type: String::new(),
        total_bytes: 100_000 << 20,
        used_bytes: used_mib << 20,
    }
}

/// What a busy machine measures in the course of a day.
fn busy(sample: &mut SampleRow) {
    let n = sample.seq as f64;
    sample.cpu_percent = 40.0 + 30.0 * (n / 180.0).sin() + 8.0 * (n / 7.0).sin();
    sample.load = [2.0 + 1.5 * (n / 200.0).sin(), 2.0, 2.0];
    sample.memory_used_bytes = ((7.0 + 2.0 * (n / 400.0).sin()) * 1_073_741_824.0) as i64;
    sample.memory_total_bytes = 16 << 30;
    sample.uptime_seconds = 30 * sample.seq;
    sample.process_count = 180;
    sample.network_rx_bytes = 900_000 * sample.seq + (300_000.0 * (n / 50.0).sin()) as i64;
    sample.network_tx_bytes = 300_000 * sample.seq;
    let (root, var) = (42_000 + sample.seq, 70_000 + 5 * (sample.seq % 700));
    sample.disks = vec![disk("/", root), disk("/var", var)];
}

/// A day of samples for two hosts, with gaps; one of them has a note and changes of presence.
pub async fn seed_history(site: &Site) -> Result<()> {
    for hostname in ["web-002", "web-042"] {
        seed_samples(site, hostname, 2880, &[1200..=1400, 2800..=2815], busy).await?;
    }
    site.psql(
        "INSERT INTO host_events (at, host_id, kind, actor, text)
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

/// Rollups of a host for the hours that began so many hours before this one.
pub async fn seed_rollups(site: &Site, hostname: &str, ago: RangeInclusive<i32>) -> Result<()> {
    site.store()?
        .partitions_create(Duration::from_hours(7 * 24))
        .await?;
    let (newest, oldest) = (ago.start(), ago.end());
    site.psql(&format!(
        "INSERT INTO sample_shapes (shape, parts) VALUES (md5('nothing')::uuid, '[]') ON CONFLICT DO NOTHING;
         INSERT INTO host_rollups (
            host_id, hour, first_at, last_at, counters_from, cpu_percent_min, cpu_percent_avg, cpu_percent_max,
            load_1m_min, load_1m_avg, load_1m_max, load_5m_min, load_5m_avg, load_5m_max, load_15m_min, load_15m_avg, load_15m_max,
            memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max, memory_total_bytes,
            swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes,
            process_count_min, process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase, sample_count, shape, figures)
         SELECT id, hour, hour, hour, hour, 0, 50, 100, 0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 3, 0, 0, 120, md5('nothing')::uuid, '{{}}'
           FROM hosts, generate_series({newest}, {oldest}) AS ago, LATERAL (SELECT date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour) hours
          WHERE hostname = '{hostname}'"
    ))
    .await?;
    Ok(())
}

/// A text that runs as a script, or ends an attribute, where it is not escaped, and that a reader sees reversed.
const HOSTILE: &str = "\"><img src=x onerror=hacked=1><script>hacked=1</script>''\u{202e}\u{200b}";

/// Puts [`HOSTILE`] into every text that an agent or a person chooses, of the host `hostname` and around it. Returns the ids
/// of the host, of a pending agent and of a token.
pub async fn seed_hostile(site: &Site, hostname: &str) -> Result<[String; 3]> {
    site.psql(&format!(
        "UPDATE host_vitals SET fullest_disk_mount_point = '{HOSTILE}';
         UPDATE hosts SET os = '{HOSTILE}', labels = jsonb_build_object('a', '{HOSTILE}'), ip_addresses = ARRAY['{HOSTILE}'],
                hostname = CASE hostname WHEN '{hostname}' THEN '{HOSTILE}' ELSE '{HOSTILE}' || hostname END;
         UPDATE sample_shapes SET parts = jsonb_build_array(jsonb_build_object('kind', 'disk_used', 'name', '{HOSTILE}'),
                                                            jsonb_build_object('kind', 'disk_total', 'name', '{HOSTILE}'));
         UPDATE metric_gaps SET reason = '{HOSTILE}';
         INSERT INTO host_events (host_id, kind, actor, text)
         SELECT id, 'note', '{HOSTILE}', '{HOSTILE}' FROM hosts WHERE hostname = '{HOSTILE}';
         INSERT INTO enrolment_tokens (hash, label, created_by, labels) VALUES (sha256('x'), '{HOSTILE}', '{HOSTILE}', jsonb_build_object('a', '{HOSTILE}'));
         INSERT INTO agents (host_id, key, status, version, facts)
         SELECT id, sha256('y'), 'pending', '{HOSTILE}', jsonb_build_object('hostname', '{HOSTILE}') FROM hosts WHERE hostname = '{HOSTILE}'",
    ))
    .await?;
    let ids = format!(
        "SELECT (SELECT id FROM hosts WHERE hostname = '{HOSTILE}'), (SELECT id FROM agents WHERE status = 'pending'),
                (SELECT id FROM enrolment_tokens)"
    );
    let ids = site.psql(&ids).await?;
    let mut ids = ids.split('|').map(str::to_owned);
    let mut id = || ids.next().context("three ids");
    Ok([id()?, id()?, id()?])
}

/// A day of presence with a hole of an hour, and the pictures of the fleet as the service counts them.
pub async fn seed_pictures(site: &Site) -> Result<()> {
    site.psql(
        "INSERT INTO fleet_presence (at, online, offline)
         SELECT to_timestamp(floor(extract(epoch FROM now())::float8 / 300) * 300) - n * interval '5 minutes', 40 + n % 15, 20 - n % 15
           FROM generate_series(1, 287) n WHERE n NOT BETWEEN 100 AND 112
         ON CONFLICT DO NOTHING",
    )
    .await?;
    let store = site.store()?;
    eventually("no other instance is at it", async || {
        let counted = store.fleet_pictures_refresh(Duration::ZERO).await;
        counted.is_ok_and(|counted| counted)
    })
    .await
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
         INSERT INTO sample_shapes (shape, parts) VALUES (md5('nothing')::uuid, '[]');
         INSERT INTO host_rollups (
            host_id, hour, first_at, last_at, counters_from, cpu_percent_min, cpu_percent_avg, cpu_percent_max,
            load_1m_min, load_1m_avg, load_1m_max, load_5m_min, load_5m_avg, load_5m_max, load_15m_min, load_15m_avg, load_15m_max,
            memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max, memory_total_bytes,
            swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes,
            process_count_min, process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase, sample_count, shape, figures)
         SELECT id, hour, hour, hour, hour, 0, least(greatest(cpu + 16 * sin((n + ago) / 3.1) + 9 * sin(n * ago), 1), 99), 100,
                0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 3, 0, 0, 120, md5('nothing')::uuid, '{}'
           FROM fleet, generate_series(0, 23) AS ago, LATERAL (SELECT date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour) hours",
    )
    .await?;
    Ok(())
}

/// Two trust anchors, one of them retired. Of every three agents one has confirmed it, one has not, and one says nothing.
pub async fn seed_trust(site: &Site) -> Result<()> {
    site.psql(
        "SELECT add_trust_anchor('old', 'CN=old authority', now() - interval '1 day', 'ann');
         SELECT retire_trust_anchor(encode(sha256('old'), 'hex'), false, 'ann');
         SELECT add_trust_anchor('new', 'CN=new authority', now() + interval '9 years', 'ann');
         INSERT INTO agent_trust (agent_id, anchors, problem)
         SELECT id, ARRAY[encode(sha256(CASE WHEN n % 3 = 0 THEN 'new' ELSE 'old' END::bytea), 'hex')], CASE n % 3 WHEN 1 THEN 'off' ELSE '' END
           FROM (SELECT a.id, row_number() OVER (ORDER BY h.hostname) - 1 AS n FROM agents a JOIN hosts h ON h.id = a.host_id
                  WHERE a.status = 'active') agents WHERE n % 3 < 2",
    )
    .await?;
    Ok(())
}

/// A rollout that was halted, release 7, with agents in every step, and a release that may take it back.
pub async fn seed_rollout(site: &Site) -> Result<()> {
    site.psql(
        "INSERT INTO agent_releases (serial, version, platforms, manifest, signature, added_by)
         VALUES (7, '1.5.0', '{linux/x86_64,linux/aarch64}', 'm', sha512('7'), 'ann'),
                (8, '1.4.2', '{linux/x86_64,linux/aarch64}', 'n', sha512('8'), 'ann');
         INSERT INTO rollouts (serial, selector, stages, soak_seconds, hours, state, stage, threshold, reason, created_by)
         VALUES (7, '{\"env\": \"prod\"}', '{5,1%,10%,100%}', 1800, 'mon-fri 08:00-16:00', 'halted', 2, 100000, '3 of 18 refuse it', 'ann');
         INSERT INTO agent_updates (agent_id, platform, serial, version, step, reason, log_tail, offered_serial, offered_at)
         SELECT id, 'linux/x86_64', 7, '1.5.0', step, CASE WHEN step IN ('refused', 'unable') THEN 'it did not hold a session for a minute' ELSE '' END,
                CASE step WHEN 'refused' THEN E'the session begins\nthe service does not answer' ELSE '' END, 7, now()
           FROM (SELECT a.id, (ARRAY['approved', 'downloading', 'staged', 'trying', 'refused', 'unable', 'offered'])[(1 + row_number() OVER (ORDER BY a.id) % 7)::int] AS step
                   FROM agents a WHERE a.status = 'active' LIMIT 21) agents;
         SELECT set_settings_rule(NULL, 100, '{\"env\": \"prod\"}',
             '{\"interval\": 20, \"ignored_mounts\": [\"/mnt/*\", \"/var/lib/docker/overlay2/*\"], \"log\": {\"level\": \"debug\", \"until\": 99999999999}}',
             50, 'ann', 'a test')",
    )
    .await?;
    Ok(())
}
