//! What the console costs with 200,000 hosts. `make bench-console` runs this on an optimised build.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_sandbox::PostgresOptions;
use svc_store::{AgentId, HostId, Role, Store};
use svc_testkit::{Process, Site, Usage, range};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::support::{Client, Console};

const HOSTS: i64 = 200_000;
const LIMIT: Duration = Duration::from_millis(100);
const ROUNDS: usize = 60;
/// Hosts that report at once.
const BATCH: usize = 1000;
/// Samples of each host that are not compacted yet.
const SAMPLES: i64 = 5;

/// Names, labels and systems of four data centres. Every hundredth host is offline. The hosts that lists by name begin with,
/// 10,000 of them, have a day of rollups. All agents have just reconnected.
const FLEET: &str = "
    INSERT INTO hosts (id, hostname, os, os_version, cpu_count, memory_total_bytes, labels, ip_addresses)
    SELECT md5('host ' || n)::uuid, place || '-web-' || lpad((n * 7919 % 200000)::text, 6, '0'),
           (ARRAY['Debian GNU/Linux', 'Ubuntu', 'Rocky Linux'])[1 + n % 3], (ARRAY['12', '24.04', '9'])[1 + n % 3], 4, 8::bigint << 30,
           jsonb_build_object('env', CASE n % 4 WHEN 0 THEN 'staging' ELSE 'prod' END, 'dc', place, 'rack', (n % 500)::text),
           ARRAY['10.' || n / 65536 || '.' || n / 256 % 256 || '.' || n % 256]
      FROM generate_series(1, 200000) n, LATERAL (SELECT (ARRAY['ams', 'fra', 'nyc', 'sfo'])[1 + n / 50000 % 4] AS place) p;
    UPDATE host_vitals v SET fullest_disk_percent = n % 97 FROM generate_series(1, 200000) n WHERE v.host_id = md5('host ' || n)::uuid;
    INSERT INTO agents (id, host_id, key, status, version)
    SELECT md5('agent ' || n)::uuid, md5('host ' || n)::uuid, sha256(n::text::bytea), 'active',
           CASE n % 1000 WHEN 0 THEN '0.3.0' ELSE '0.2.0' END FROM generate_series(1, 200000) n;
    INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
    VALUES ('10000000-0000-4000-8000-000000000000', 'k', 'h', 'v', 'g', 'w', now() + interval '1 day');
    UPDATE agent_state s SET presence = 'online', cause = 'connected', instance_id = '10000000-0000-4000-8000-000000000000'
      FROM agents a WHERE a.id = s.agent_id AND get_byte(a.key, 0) > 2;
    SELECT metrics_partitions_ensure('7 days'), rollups_partition_ensure(now()), rollups_partition_ensure(now() - interval '24 hours');
    INSERT INTO host_rollups
    SELECT md5('host ' || n)::uuid, hour, hour, hour, hour, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8589934592,
           1, 2, 3, 0, 1, 2, 3, 1000, 1000, 50, 120, '/'
      FROM generate_series(1, 200000) n, LATERAL (SELECT date_trunc('hour', now(), 'UTC') - ago * interval '1 hour' AS hour
                                                   FROM generate_series(1, 23) ago) hours
     WHERE n * 7919 % 200000 < 10000;
    INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
    SELECT id, 'presence', 'offline', 'online', 'connected' FROM agents;
    VACUUM ANALYZE";

/// Pages, and searches that find many, few and no hosts, in an order that follows the condition or not.
const PAGES: [&str; 34] = [
    "/",
    "/hosts",
    "/hosts?sort=disk",
    "/hosts?sort=offline",
    "/hosts?q=nyc",
    "/hosts?q=sfo",
    "/hosts?q=web",
    "/hosts?q=nyc-web-1234",
    "/hosts?q=zzz",
    "/hosts?q=eb",
    "/hosts?q=qq",
    "/hosts?q=7",
    "/hosts?q=10.1.2.3",
    "/hosts?q=label:env%3Dprod",
    "/hosts?q=label:env%3Dstaging",
    "/hosts?q=label:dc%3Dsfo",
    "/hosts?q=label:rack%3D77",
    "/hosts?q=label:rack%3Dnone",
    "/hosts?q=label:dc%3Dsfo+is:online",
    "/hosts?q=label:dc%3Dams+nyc",
    "/hosts?q=os:debian",
    "/hosts?q=os:plan9",
    "/hosts?q=version:0.2",
    "/hosts?q=version:0.3",
    "/hosts?q=version:9",
    "/hosts?q=is:online",
    "/hosts?q=is:offline",
    "/hosts?q=is:skewed",
    "/hosts?q=is:retired",
    "/hosts?q=disk:90",
    "/approvals",
    "/activity",
    "/activity?actor=nobody",
    "/service",
];

async fn fleet() -> Result<Console> {
    let site = Site::with_server(PostgresOptions::default()).await?;
    for statement in FLEET.split(";\n") {
        site.psql(statement).await?;
    }
    Console::on(site, &[]).await
}

/// The time of each request, sorted.
async fn times(client: &Client, path: &str) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let page = client.get(path).await?;
        times.push(began.elapsed());
        ensure!(page.status == 200, "{path}: {}", page.status);
    }
    times.sort();
    Ok(times)
}

/// One test, because loading the fleet takes most of the time. All figures are printed before any of them fails.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "loads 200,000 hosts and measures: run by make bench-console"]
async fn pages_take_less_than_100_ms_and_200_viewers_cost_little() -> Result<()> {
    let mut console = fleet().await?;
    let agents = all_agents(&console.site).await?;
    ensure!(agents.len() as i64 == HOSTS, "{}", agents.len());
    let store = console.site.store()?;
    for seq in 1..=SAMPLES {
        for batch in agents.chunks(BATCH) {
            append(&store, batch, seq).await?;
        }
    }
    console.site.psql("VACUUM ANALYZE").await?;
    let process = console.run_as_process().await?;
    let pages = pages(&console).await;
    let viewers = viewers(&console, &process, agents).await;
    pages.and(viewers)
}

/// Every page and search, one at a time, with what the client waits for.
async fn pages(console: &Console) -> Result<()> {
    let client = console.signed_in("ann", Role::Admin).await?;
    let host = console.site.psql("SELECT id FROM hosts LIMIT 1").await?;
    let host = format!("/hosts/{host}");
    let mut late = Vec::new();
    for path in PAGES.into_iter().chain([host.as_str()]) {
        client.get(path).await?;
        let times = times(&client, path).await?;
        let (half, most) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
        println!("{half:>10.1?} {most:>10.1?}  {path}");
        if most >= LIMIT {
            late.push(path.to_owned());
        }
    }
    ensure!(late.is_empty(), "p99 is {LIMIT:?} or more: {late:#?}");
    Ok(())
}

/// Keeps reading a live stream, and counts its bytes.
async fn watch(client: Client, view: String) -> Result<u64> {
    let mut stream = TcpStream::connect(client.address).await?;
    let cookie = client.cookie.context("not signed in")?;
    let head = format!("GET /live?{view} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let (mut chunk, mut total) = ([0; 16 * 1024], 0);
    loop {
        match stream.read(&mut chunk).await? {
            0 => return Ok(total),
            length => total += length as u64,
        }
    }
}

/// Stores a sample of every host every 30 seconds, as the consumer does.
async fn report(store: Store, agents: Vec<(AgentId, HostId)>) -> Result<()> {
    let pause = Duration::from_secs(30) / u32::try_from(agents.len() / BATCH)?;
    let mut ticks = tokio::time::interval(pause);
    for seq in SAMPLES + 1.. {
        for batch in agents.chunks(BATCH) {
            ticks.tick().await;
            append(&store, batch, seq).await?;
        }
    }
    Ok(())
}

async fn append(store: &Store, agents: &[(AgentId, HostId)], seq: i64) -> Result<()> {
    let ranges: Vec<_> = agents.iter().map(|agent| range(*agent, seq, seq)).collect();
    store.samples_append(&ranges).await?;
    Ok(())
}

async fn all_agents(site: &Site) -> Result<Vec<(AgentId, HostId)>> {
    let rows = site.psql("SELECT id, host_id FROM agents").await?;
    let ids = rows.lines().map(|line| {
        let (agent, host) = line.split_once('|').context("two columns")?;
        Ok((AgentId(agent.parse()?), HostId(host.parse()?)))
    });
    ids.collect()
}

/// Viewers of 20 different pages of the list, while every host reports.
async fn viewers(
    console: &Console,
    process: &Process,
    agents: Vec<(AgentId, HostId)>,
) -> Result<()> {
    let reporting = tokio::spawn(report(console.site.store()?, agents));
    let mut viewers = JoinSet::new();
    for person in 0..10 {
        let client = console
            .signed_in(&format!("person-{person}"), Role::Viewer)
            .await?;
        for tab in 0..20 {
            let skip = 50 * tab;
            let ids = format!(
                "SELECT string_agg(id::text, ',') FROM (SELECT id FROM hosts ORDER BY hostname OFFSET {skip} LIMIT 50) page"
            );
            let ids = console.site.psql(&ids).await?;
            viewers.spawn(watch(client.clone(), format!("view=hosts&ids={ids}")));
        }
    }
    let (_, cores) =
        Usage::cores(process.pid(), tokio::time::sleep(Duration::from_secs(90))).await?;
    let usage = Usage::of(process.pid())?;
    println!(
        "200 viewers: {:.1} % of a core, {} MiB, {} MiB at most",
        cores * 100.0,
        usage.resident_mib(),
        usage.peak >> 20
    );
    ensure!(
        viewers.len() == 200 && viewers.try_join_next().is_none(),
        "a stream ended"
    );
    ensure!(
        !reporting.is_finished(),
        "the fleet stopped: {:?}",
        reporting.await
    );
    ensure!(cores < 0.05, "{cores} cores");
    ensure!(usage.resident_mib() <= 64, "{} MiB", usage.resident_mib());
    Ok(())
}
