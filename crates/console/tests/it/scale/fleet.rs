//! The fleet that the benchmark looks at: written by SQL where there is much of it, and by the store where the way matters.

use std::time::Instant;

use anyhow::{Context, Result};
use jiff::{Timestamp, ToSpan};
use svc_sandbox::PostgresOptions;
use svc_store::{AgentId, COMPACTION_STEP, DiskRow, HostId, Range, Store};
use svc_testkit::{Site, range};

use crate::support::seed_pictures;

/// Hosts that report at once.
pub const BATCH: usize = 1000;
/// Samples that a host has stored when an hour is over.
const HOUR: i64 = 120;
const DAY: i64 = 24 * HOUR;

/// Names, labels and systems of four data centres. Every hundredth host is offline, and all agents have just reconnected: the
/// newest events are changes of presence. A quarter of the agents registered with one token, and 500 wait for approval. The
/// hosts that lists of a data centre begin with, a twentieth, have a day of rollups. One host has a year of them.
const FLEET: &str = "
    INSERT INTO enrolment_tokens (id, hash, label, max_uses, uses)
    SELECT md5('token ' || n)::uuid, sha256(('token ' || n)::bytea), 'token ' || n, 1000000, 0 FROM generate_series(1, 600) n;
    INSERT INTO hosts (id, hostname, os, os_version, cpu_count, memory_total_bytes, labels, ip_addresses)
    SELECT md5('host ' || n)::uuid, place || '-web-' || lpad((n::bigint * 7919 % {hosts})::text, 6, '0'),
           (ARRAY['Debian GNU/Linux', 'Ubuntu', 'Rocky Linux'])[1 + n % 3], (ARRAY['12', '24.04', '9'])[1 + n % 3], 4, 8::bigint << 30,
           jsonb_build_object('env', CASE n % 4 WHEN 0 THEN 'staging' ELSE 'prod' END, 'dc', place, 'rack', (n % 500)::text),
           ARRAY['10.' || n / 65536 || '.' || n / 256 % 256 || '.' || n % 256]
      FROM generate_series(1, {hosts}) n,
           LATERAL (SELECT (ARRAY['ams', 'fra', 'nyc', 'sfo'])[1 + n::bigint * 4 / {hosts} % 4] AS place) places;
    INSERT INTO agents (id, host_id, key, status, version, token_id)
    SELECT md5('agent ' || n)::uuid, md5('host ' || n)::uuid, sha256(n::text::bytea), 'active',
           CASE n % 1000 WHEN 0 THEN '0.3.0' ELSE '0.2.0' END, CASE n % 4 WHEN 1 THEN md5('token 1')::uuid END
      FROM generate_series(1, {hosts}) n;
    WITH waiting AS (INSERT INTO hosts (hostname, labels) SELECT 'new-' || n, '{\"env\": \"prod\"}' FROM generate_series(1, 500) n RETURNING id)
    INSERT INTO agents (host_id, key, status, pending_reason, token_id)
    SELECT id, sha256(id::text::bytea), 'pending', 'approval', md5('token 2')::uuid FROM waiting;
    INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at, load)
    VALUES ('10000000-0000-4000-8000-000000000000', 'k', 'h', 'v', 'g', 'w', now() + interval '1 day', '{\"agents\": {hosts}}');
    UPDATE agent_state s SET presence = 'online', cause = 'connected', instance_id = '10000000-0000-4000-8000-000000000000'
      FROM agents a WHERE a.id = s.agent_id AND a.status = 'active' AND get_byte(a.key, 0) > 2;
    SELECT metrics_partitions_ensure('7 days');
    SELECT rollups_partition_ensure(now() - months * interval '1 month') FROM generate_series(0, 13) months;
    INSERT INTO sample_shapes (shape, parts) VALUES (md5('nothing')::uuid, '[]');
    INSERT INTO host_rollups (
        host_id, hour, first_at, last_at, counters_from, cpu_percent_min, cpu_percent_avg, cpu_percent_max,
        load_1m_min, load_1m_avg, load_1m_max, load_5m_min, load_5m_avg, load_5m_max, load_15m_min, load_15m_avg, load_15m_max,
        memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max, memory_total_bytes,
        swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes,
        process_count_min, process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase,
        fullest_disk_percent, sample_count, fullest_disk_mount_point, shape, figures)
    SELECT md5('host ' || n)::uuid, hour, hour, hour + interval '59 minutes 30 seconds', hour, 1, (n + ago) % 100, 99,
           1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8::bigint << 30, 0, 0, 0, 0, 1, 2, 3, 1000, 1000, 50, 120, '/', md5('nothing')::uuid, '{}'
      FROM generate_series(1, {hosts}) n,
           LATERAL generate_series(CASE n WHEN 1 THEN 25 ELSE 1 END, CASE n WHEN 1 THEN 365 * 24 ELSE 23 END) ago,
           LATERAL (SELECT date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour) hours
     WHERE n = 1 OR n::bigint * 7919 % {hosts} < {hosts} / 20;
    INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
    SELECT md5('agent ' || n * 10)::uuid, 10000, 10010, 'declared', 'the spool was full' FROM generate_series(1, {hosts} / 10) n;
    UPDATE agent_state SET last_gap_at = now() WHERE agent_id IN (SELECT agent_id FROM metric_gaps);
    INSERT INTO agent_events (agent_id, at, kind, from_status, to_status, reason)
    SELECT md5('agent ' || n)::uuid, clock_timestamp(), 'presence', 'offline', 'online', 'connected' FROM generate_series(1, {hosts}) n";

/// A host whose plots have a whole year.
pub const OLD_HOST: &str = "md5('host 1')::uuid";

/// Whether a host is among those that lists of a data centre begin with, a fiftieth, and whether it is the old one.
const AGENTS: &str = "
    SELECT a.id, a.host_id, right(h.hostname, 6)::int < {hosts} / 50, h.id = md5('host 1')::uuid
      FROM agents a JOIN hosts h ON h.id = a.host_id WHERE a.status = 'active'";

/// One agent, and the number of its last sample.
pub struct Reporter {
    ids: (AgentId, HostId),
    seq: i64,
    listed: bool,
    old: bool,
}

impl Reporter {
    /// Its next samples, as if taken now. Each differs from the one before, so that live rows change.
    pub fn report(&mut self, count: i64) -> Range {
        let first = self.seq + 1;
        self.seq += count;
        let mut range = range(self.ids, first, self.seq);
        for sample in &mut range.samples {
            sample.cpu_percent = (sample.seq * 37 % 100) as f64;
            sample.memory_used_bytes = (sample.seq % 8) << 30;
        }
        range
    }

    /// A sample every 30 seconds of the last day, with two disks.
    fn day(&mut self) -> Result<Range> {
        let mut range = self.report(DAY);
        let now = Timestamp::now();
        for sample in &mut range.samples {
            sample.sampled_at = now.checked_sub((30 * (DAY - sample.seq)).seconds())?;
            sample.disks = vec![disk("/"), disk("/var")];
        }
        Ok(range)
    }
}

fn disk(mount_point: &str) -> DiskRow {
    DiskRow {
        mount_point: mount_point.into(),
        device: "/dev/sda1".into(),
        fs_type: "ext4".into(),
        total_bytes: 100 << 30,
        used_bytes: 42 << 30,
    }
}

/// A filled database, and the agents that report to it.
pub async fn fill(hosts: usize) -> Result<(Site, Vec<Reporter>)> {
    let site = Site::with_server(PostgresOptions::production()).await?;
    for statement in FLEET.split(";\n") {
        let statement = statement.replace("{hosts}", &hosts.to_string());
        site.psql(&statement)
            .await
            .with_context(|| statement.chars().take(100).collect::<String>())?;
    }
    let mut reporters = reporters(&site, hosts).await?;
    let store = site.store()?;
    for old in reporters.iter_mut().filter(|reporter| reporter.old) {
        store.samples_append(&[old.day()?]).await?;
    }
    compact(&site, &store).await?;
    // What is not compacted yet is read sample by sample: an hour of it where lists begin.
    let listed = reporters.iter_mut().filter(|reporter| reporter.listed);
    let ranges: Vec<Range> = listed.map(|listed| listed.report(HOUR)).collect();
    for batch in ranges.chunks(10) {
        store.samples_append(batch).await?;
    }
    for batch in reporters.chunks_mut(BATCH) {
        append(&store, batch).await?;
    }
    let disks = "UPDATE host_vitals v SET fullest_disk_percent = host_no % 97 WHERE fullest_disk_percent IS NULL";
    site.psql(disks).await?;
    site.psql("VACUUM ANALYZE").await?;
    let began = Instant::now();
    seed_pictures(&site).await?;
    println!("pictures of the fleet: counted in {:?}", began.elapsed());
    Ok((site, reporters))
}

/// The next sample of each.
pub async fn append(store: &Store, reporters: &mut [Reporter]) -> Result<()> {
    let ranges = reporters.iter_mut().map(|reporter| reporter.report(1));
    store.samples_append(&ranges.collect::<Vec<_>>()).await?;
    Ok(())
}

/// Compacts what has arrived so far, as if its hour were over.
async fn compact(site: &Site, store: &Store) -> Result<()> {
    clock(site, "now() + interval ''1 hour''").await?;
    store.hours_seal().await?;
    while store.compaction_step(COMPACTION_STEP).await?.more {}
    clock(site, "now()").await
}

async fn clock(site: &Site, now: &str) -> Result<()> {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT {now}'"
    );
    site.psql(&sql).await.map(drop)
}

async fn reporters(site: &Site, hosts: usize) -> Result<Vec<Reporter>> {
    let rows = site
        .psql(&AGENTS.replace("{hosts}", &hosts.to_string()))
        .await?;
    let reporter = |line: &str| {
        let mut columns = line.split('|');
        let mut column = || columns.next().context("four columns");
        Ok(Reporter {
            ids: (AgentId(column()?.parse()?), HostId(column()?.parse()?)),
            seq: 0,
            listed: column()? == "t",
            old: column()? == "t",
        })
    };
    rows.lines().map(reporter).collect()
}
