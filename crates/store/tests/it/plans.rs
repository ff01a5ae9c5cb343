//! Query plans on a large fleet: the documented queries of the web application use the
//! documented indexes, an instance's regular read of its sessions reads only its own, an append
//! reads only its own agents, and a query of `host_metrics` unpacks only what it returns.

use std::collections::BTreeSet;

use anyhow::Result;
use uuid::Uuid;

use crate::{document, fixtures::*, support::*};

/// The size of a fleet. Every host has a sample per hour for a day; the busy ones have one
/// every 30 seconds, and the old ones have a year of rollups.
#[derive(Clone, Copy, Debug)]
struct Size {
    hosts: u32,
    busy: u32,
    old: u32,
}

const FLEET: &str = "
    INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
    VALUES ('10000000-0000-4000-8000-000000000000', 'k', 'h', 'v', 'g', 'w', now() + interval '1 minute');
    INSERT INTO hosts (id, hostname, os, cpu_count, memory_total_bytes, labels)
    SELECT md5('host ' || n)::uuid, 'web-' || n, 'Debian', 4, 8589934592, '{\"env\": \"prod\"}' FROM generate_series(1, HOSTS) n;
    UPDATE host_vitals SET shape = SHAPE, vitals_at = now(), cpu_percent = host_no % 100, load_1m = 0.5, memory_used_bytes = host_no * 1000,
           fullest_disk_percent = host_no % 97, fullest_disk_mount_point = '/', parts = '{53687091200, 107374182400}';
    INSERT INTO sample_shapes (shape, parts) SELECT SHAPE, PARTS;
    INSERT INTO sample_shapes (shape, parts) SELECT gen_random_uuid(), PARTS FROM generate_series(1, HOSTS / 2);
    INSERT INTO agents (id, host_id, key, status, version)
    SELECT md5('agent ' || n)::uuid, md5('host ' || n)::uuid, sha256(n::text::bytea), 'active', '1.0.0' FROM generate_series(1, HOSTS) n;
    INSERT INTO agent_numbers (agent_id) SELECT id FROM agents;
    UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = '10000000-0000-4000-8000-000000000000';";

/// The last hour is open, the hours before are compacted.
const HISTORY: &str = "
    INSERT INTO samples_open (
           arrived_hour, host_no, agent_no, sampled_at, seq, shape, parts, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes,
           memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes)
    SELECT sample_hour_take(), v.host_no, a.agent_no, now() - age, 1, SHAPE, '{53687091200, 107374182400}', 50, 0.5, 0.4, 0.3, 1000,
           8589934592, 0, 0, 1, 1, 1, 1
      FROM (SELECT n, interval '1 minute' AS age FROM generate_series(1, HOSTS) n
             UNION ALL
            SELECT n, beat * interval '30 seconds' FROM generate_series(120, 1, -1) beat, generate_series(1, BUSY) n) samples
      JOIN host_vitals v ON v.host_id = md5('host ' || n)::uuid
      JOIN agent_numbers a ON a.agent_id = md5('agent ' || n)::uuid;
    INSERT INTO sample_chunks (
           host_no, hour, agent_no, shape, first_seq, samples, at, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes,
           memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes,
           parts_series, parts_steps)
    SELECT v.host_no, date_trunc('hour', now(), 'UTC') - ago * interval '1 hour', a.agent_no, SHAPE, 1, size[1], array_fill(0, size),
           array_fill(50::real, size), array_fill(0.5::real, size), array_fill(0.4::real, size), array_fill(0.3::real, size),
           array_fill(1000::bigint, size), array_fill(8589934592, size), array_fill(0::bigint, size), array_fill(0::bigint, size),
           array_fill(1::bigint, size), array_fill(1, size), array_fill(1::bigint, size), array_fill(1::bigint, size),
           '{53687091200, 107374182400, 53687091200, 107374182400, 0, 0, 0, 0, 0, 0}', ''
      FROM generate_series(23, 1, -1) ago, generate_series(1, HOSTS) n, LATERAL (SELECT ARRAY[CASE WHEN n <= BUSY THEN 120 ELSE 1 END] AS size) s,
           host_vitals v, agent_numbers a
     WHERE v.host_id = md5('host ' || n)::uuid AND a.agent_id = md5('agent ' || n)::uuid;";

const ROLLUPS: &str = "
    SELECT rollups_partition_ensure(now() - n * interval '28 days') FROM generate_series(0, 13) n;
    INSERT INTO host_rollups
    SELECT md5('host ' || n)::uuid, hour, hour, hour, hour, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8589934592,
           1, 2, 3, 0, 1, 2, 3, 1000, 1000, 50, 120, '/', SHAPE, '{{53687091200, NULL, NULL}, {107374182400, NULL, NULL}}'
      FROM (SELECT n, date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour
              FROM (SELECT n, ago FROM generate_series(8759, 24, -1) ago, generate_series(1, OLD) n
                     UNION ALL
                    SELECT n, ago FROM generate_series(23, 1, -1) ago, generate_series(1, HOSTS) n) hours) samples;";

const SHAPE: &str = "md5('one disk')::uuid";
const PARTS: &str = r#"'[{"kind": "disk_used", "name": "/", "device": "/dev/sda1", "fs_type": "ext4"},
    {"kind": "disk_total", "name": "/"}]'::jsonb"#;

/// Not the partitions: what is estimated of an empty one is a scan of it.
const ANALYZE: &str = "ANALYZE hosts, agents, agent_state, agent_events, ingest_instances, host_vitals, agent_numbers, sample_shapes, sample_hours";

const ALL: [&str; 4] = [FLEET, HISTORY, ROLLUPS, ANALYZE];

/// The documented queries, with arguments for which there are rows.
const QUERIES: [(&str, &str); 4] = [
    (
        "fleet-overview",
        "('web-5', '00000000-0000-0000-0000-000000000000')",
    ),
    ("last-day", "(md5('host 1')::uuid)"),
    ("last-year", "(md5('host 1')::uuid)"),
    ("top-disks", ""),
];

impl Size {
    fn new(hosts: u32, busy: u32, old: u32) -> Size {
        Size { hosts, busy, old }
    }

    async fn load(self, store: &TestStore, scripts: &[&str]) -> Result<()> {
        for script in scripts {
            let script = script
                .replace("HOSTS", &self.hosts.to_string())
                .replace("BUSY", &self.busy.to_string())
                .replace("OLD", &self.old.to_string())
                .replace("SHAPE", SHAPE)
                .replace("PARTS", PARTS);
            store.sql(&script).await?;
        }
        Ok(())
    }
}

/// The plan of a documented query, with its execution time.
async fn explain(store: &TestStore, (name, arguments): (&str, &str)) -> Result<Vec<String>> {
    let query = document::query(name);
    let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE documented";
    let sql = format!("PREPARE documented AS {query}; {explain}{arguments}");
    let plan = store.sql(&sql).await?;
    Ok(plan.lines().map(general).collect())
}

/// Replaces the dates in partition names.
fn general(line: &str) -> String {
    let word = |word: &str| {
        let rest = word.trim_start_matches(|c: char| c.is_ascii_digit());
        match word.len() - rest.len() {
            6.. => format!("<date>{rest}"),
            _ => word.to_owned(),
        }
    };
    line.split('_').map(word).collect::<Vec<_>>().join("_")
}

/// The indexes that a plan uses.
fn indexes<'a>(plan: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let index = |line: &'a str| {
        let named = line
            .split_once(" using ")
            .or(line.split_once("Bitmap Index Scan on "));
        named.and_then(|(_, name)| name.split(' ').next())
    };
    plan.into_iter().filter_map(index).collect()
}

async fn check_documented_plans(size: Size) -> Result<()> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    size.load(&store, &ALL).await?;
    for query in QUERIES {
        let plan = explain(&store, query).await?;
        println!("{}:\n{}\n", query.0, plan.join("\n"));
        assert_as_documented(query.0, plan.iter().map(String::as_str));
    }
    Ok(())
}

/// What is read as a whole if the planner likes.
const SMALL: [&str; 3] = ["ingest_instances", "sample_hours", "hosts_set_aside"];

/// The plan uses the documented indexes, and only small tables are scanned sequentially.
fn assert_as_documented<'a>(name: &str, plan: impl Iterator<Item = &'a str>) {
    let large = |line: &&str| !SMALL.iter().any(|table| line.contains(table));
    let plan: Vec<&str> = plan.filter(large).collect();
    let mut lines = plan.iter();
    let scan = lines.find(|line| line.contains("Seq Scan"));
    assert_eq!(scan, None, "{name}");
    let used = indexes(plan);
    assert!(!used.is_empty(), "{name}");
    let documented = indexes(document::plan(name).filter(large));
    assert_eq!(used, documented, "{name}");
}

#[tokio::test]
async fn the_documented_queries_use_the_documented_indexes() -> Result<()> {
    check_documented_plans(Size::new(10_000, 100, 20)).await
}

#[tokio::test]
#[ignore = "loads millions of rows: run by make plans"]
async fn the_documented_queries_use_the_documented_indexes_on_a_hundred_thousand_hosts()
-> Result<()> {
    check_documented_plans(Size::new(100_000, 1_000, 100)).await
}

/// Moves fifty agents to another instance, and revokes three of them.
const ELSEWHERE: &str = "
    UPDATE agent_state SET instance_id = '20000000-0000-4000-8000-000000000000'
     WHERE agent_id IN (SELECT md5('agent ' || n)::uuid FROM generate_series(1, 50) n);
    SELECT revoke_agent(md5('agent ' || n)::uuid, 'ann') FROM generate_series(1, 3) n;
    ANALYZE";

#[tokio::test]
async fn an_instance_reads_its_own_sessions_by_index() -> Result<()> {
    let store = migrated().await?;
    let fleet = [FLEET, ELSEWHERE];
    Size::new(5_000, 0, 0).load(&store, &fleet).await?;
    let instance = Uuid::from_u128(0x2000_0000_0000_4000_8000_0000_0000_0000);
    let stored = store.sessions_stored(instance).await?;
    let active = stored.iter().filter(|session| session.active).count();
    assert_eq!((stored.len(), active), (50, 47));
    let used = "
        SELECT string_agg(indexrelname, ' ' ORDER BY indexrelname) FROM pg_stat_user_indexes
         WHERE indexrelname IN ('agent_state_held', 'agents_not_active') AND idx_scan > 0";
    let both = "agent_state_held agents_not_active";
    store.becomes(used, both).await
}

/// A session makes its plans while PostgreSQL knows nothing yet of tables that were just filled. A plan
/// that compares each active agent with each of the batch finds the agents by another index.
#[tokio::test]
async fn an_append_finds_its_agents_by_key_before_the_tables_are_analysed() -> Result<()> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    let agents = TestAgent::many(&store, 1_000).await?;
    for seq in 1..=3 {
        let range = |agent: &TestAgent| agent.range(&samples(seq..=seq), &[]);
        let ranges: Vec<_> = agents[..10].iter().map(range).collect();
        store.samples_append(&ranges).await?;
    }
    let moved = "SELECT n_tup_upd >= 30 FROM pg_stat_user_tables WHERE relname = 'agent_state'";
    store.becomes(moved, "t").await?;
    let otherwise = "
        SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes
         WHERE relname = 'agents' AND indexrelname <> 'agents_pkey'";
    assert_eq!(store.sql(otherwise).await?, "0");
    let looked =
        "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'agents_not_active'";
    // Each of the 30 was looked for among the agents that are not active.
    store.becomes(looked, "30").await
}

/// Of a host with 23 chunks. Their times are all compared.
#[tokio::test]
async fn a_query_by_time_alone_unpacks_only_the_chunks_that_it_returns() -> Result<()> {
    let store = migrated().await?;
    store.partitions_create(DAY).await?;
    Size::new(10, 1, 1).load(&store, &ALL).await?;
    let hour = "date_trunc('hour', now(), 'UTC') - interval '3 hours'";
    let rows = format!(
        "FROM host_metrics WHERE host_id = md5('host 1')::uuid
            AND sampled_at >= {hour} AND sampled_at < {hour} + interval '1 hour'"
    );
    assert_eq!(store.sql(&format!("SELECT count(*) {rows}")).await?, "120");
    let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * {rows}");
    let plan = store.sql(&explain).await?;
    let loops = |node: &str| {
        let line = plan.lines().find(|line| line.contains(node));
        line.and_then(|line| line.split_once("loops="))
            .map(|(_, loops)| loops.trim_end_matches(')'))
    };
    assert_eq!(loops("Subquery Scan on x"), Some("23"), "{plan}");
    assert_eq!(loops("generate_series i"), Some("1"), "{plan}");
    Ok(())
}
