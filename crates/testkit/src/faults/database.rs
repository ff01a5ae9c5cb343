//! Faults of PostgreSQL and of the connections to it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use svc_sandbox::{PgBouncer, query};
use svc_store::{AgentId, HostId, Range, Store};
use tokio::{task::JoinSet, time::sleep};
use url::Url;

use crate::{
    AUTO, ActiveAgent, FakeAgent, Fleet, Instance, Pace, PresenceSampler, Proxy, QueueKind, Site,
    Tables, eventually, machine, metric_becomes, range, seed, times_offline, token,
};

const WRITERS: usize = 4;

/// Slower than agents may report, so that they catch up after a fault.
const SLOW: Pace = Pace {
    every: Duration::from_secs(1),
    ..Pace::BRISK
};

#[derive(Clone, Copy, Debug)]
pub enum DatabaseFault {
    Stopped,
    Frozen,
}

/// PostgreSQL is away under load and comes back. Meanwhile the service acknowledges nothing, keeps
/// every stream and leaves every agent online. Returns how long after its return every agent had a
/// new acknowledgement.
pub async fn database_away(
    site: &mut Site,
    addresses: &[SocketAddr],
    (agents, pace): (u32, Pace),
    fault: DatabaseFault,
    length: Duration,
) -> Result<Duration> {
    let fleet = Fleet::reporting(site, addresses, agents, pace).await?;
    let (streams, presence) = (fleet.streams(), PresenceSampler::start(site));
    match fault {
        DatabaseFault::Stopped => site.postgres().stop_immediate().await?,
        DatabaseFault::Frozen => site.postgres().freeze()?,
    }
    // Acknowledgements of earlier commits may still arrive in the first half.
    sleep(length / 2).await;
    fleet.no_acks_for(length / 2).await?;
    match fault {
        DatabaseFault::Stopped => site.postgres().start_again().await?,
        DatabaseFault::Frozen => site.postgres().thaw()?,
    }
    let back = Instant::now();
    fleet.all_acked_since(back).await?;
    let recovered = back.elapsed();
    fleet.audit(site).await?;
    ensure!(fleet.streams() == streams, "agents lost their streams");
    let (samples, offline) = presence.stop().await?;
    ensure!(samples > 0 && offline == 0, "{offline} agents were offline");
    ensure!(times_offline(site).await? == 0);
    Ok(recovered)
}

/// Cuts the connection to PostgreSQL right after COMMIT was sent, so many times: PostgreSQL
/// commits, and the service never gets the answer.
pub async fn commits_cut(kind: QueueKind, agents: u32, times: usize) -> Result<()> {
    let site = Site::new().await?.with_queue(kind).await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let instance = site.instance().set("DATABASE_URL", url).start().await?;
    let fleet = Fleet::start(&site, &[instance.grpc], 0, agents, SLOW).await?;
    for _ in 0..times {
        proxy.cut_once_sent(b"COMMIT");
        eventually("a commit was cut", async || proxy.has_cut()).await?;
    }
    proxy.heal()?;
    fleet.catches_up().await?;
    fleet.audit(&site).await
}

/// Resets all connections to PostgreSQL at random moments, so many times.
pub async fn connections_reset(kind: QueueKind, agents: u32, times: usize) -> Result<()> {
    let site = Site::with_own_server().await?.with_queue(kind).await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let instance = site.instance().set("DATABASE_URL", url).start().await?;
    let fleet = Fleet::start(&site, &[instance.grpc], 0, agents, SLOW).await?;
    for _ in 0..times {
        sleep(Duration::from_millis(rand::random_range(1..50))).await;
        proxy.cut_all();
    }
    fleet.all_acked_again().await?;
    fleet.catches_up().await?;
    fleet.audit(&site).await?;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'svc' AND state LIKE 'idle in transaction%'";
    site.becomes(open, "0").await?;
    metric_becomes(instance.http, "database_pool_in_use", |in_use| {
        in_use == 0.0
    })
    .await
}

/// Locks the metrics table while agents register and are revoked. Returns the longest time that one
/// of these took.
pub async fn metrics_locked(site: &Site, instance: &Instance, seconds: u64) -> Result<Duration> {
    let secret = token(site, AUTO).await?;
    let lock =
        format!("BEGIN; LOCK TABLE samples_open IN SHARE MODE; SELECT pg_sleep({seconds}); COMMIT");
    let newcomers = async {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut slowest = Duration::ZERO;
        sleep(Duration::from_secs(1)).await;
        for number in 10_000.. {
            let asked = Instant::now();
            let agent = ActiveAgent::with_token(instance.grpc, number, &secret).await?;
            slowest = slowest.max(asked.elapsed());
            let mut call = agent.heartbeat().await?;
            let revoked = Instant::now();
            let revoke = format!("SELECT revoke_agent('{}', 'test', 'a test')", agent.id);
            site.psql(&revoke).await?;
            let end_of_stream = call.end().await?.context("no refusal")?;
            ensure!(end_of_stream.reason == "AGENT_REVOKED", "{end_of_stream:?}");
            slowest = slowest.max(revoked.elapsed());
            if Instant::now() > end {
                break;
            }
        }
        Ok(slowest)
    };
    let (locked, slowest) = tokio::join!(site.psql(&lock), newcomers);
    locked?;
    slowest
}

/// Runs `statement`, which blocks registrations and calls `pg_sleep`, while dozens of them arrive and come again. Returns the
/// most server sessions that the instance had meanwhile, without the one that listens. All registrations
/// succeed afterwards.
pub async fn sessions_during(site: &Site, address: SocketAddr, statement: &str) -> Result<u32> {
    const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'svc-ingest' AND query NOT LIKE 'LISTEN%'";
    let secret = token(site, AUTO.uses(1000)).await?;
    let (url, statement) = (site.database_url(), statement.to_owned());
    let blocking = tokio::spawn(async move { query(&url, &statement).await });
    site.sleeps().await?;
    let mut registrations = JoinSet::new();
    for number in 0..40 {
        let secret = secret.clone();
        registrations.spawn(async move {
            let agent = FakeAgent::on(machine(number))?;
            while agent.open(address, &secret).await?.is_err() {
                sleep(Duration::from_millis(200)).await;
            }
            anyhow::Ok(())
        });
    }
    let mut most = 0;
    while !blocking.is_finished() {
        most = most.max(site.psql(SESSIONS).await?.parse()?);
        sleep(Duration::from_millis(200)).await;
    }
    blocking.await??;
    for registered in registrations.join_all().await {
        registered?;
    }
    Ok(most)
}

/// Independent writers append batches of the same agents in different orders, each from a little
/// before the watermark that it knows. Returns the number of batches.
pub async fn overlapping_writers(agents: usize, length: Duration) -> Result<u64> {
    let site = Site::new().await?;
    let agents = seed(&site, agents).await?;
    let end = Instant::now() + length;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let store = site.store()?;
        store.partitions_create(Duration::from_hours(24)).await?;
        writers.push(write(store, agents.clone(), end));
    }
    let batches = futures_util::future::try_join_all(writers).await?;
    let tables = Tables::of(&site.database_url()).await?;
    ensure!(tables.stored > 0 && tables.faults() == 0, "{tables:?}");
    let all_stored = "SELECT bool_and(stored_count = acked_seq AND acked_seq > 0) FROM agent_state";
    ensure!(site.psql(all_stored).await? == "t");
    Ok(batches.iter().sum())
}

async fn write(store: Store, mut agents: Vec<(AgentId, HostId)>, end: Instant) -> Result<u64> {
    let (mut at, mut batches) = (0, 0);
    while Instant::now() < end {
        rand::seq::SliceRandom::shuffle(&mut agents[..], &mut rand::rng());
        let first = (at - 3).max(0) + 1;
        let last = first + rand::random_range(1..8);
        let ranges: Vec<Range> = agents
            .iter()
            .map(|agent| over_a_month(range(*agent, first, last)))
            .collect();
        let marks = store.samples_append(&ranges).await?;
        at = marks.iter().map(|mark| mark.acked_seq).min().unwrap_or(0);
        batches += 1;
    }
    Ok(batches)
}

/// With a sample in every minute, as an agent may store only so many of one hour.
fn over_a_month(mut range: Range) -> Range {
    for sample in &mut range.samples {
        let minutes_ago = (40_000 - sample.seq).max(0);
        sample.sampled_at -= SignedDuration::from_mins(minutes_ago);
    }
    range
}

/// Starts a PgBouncer before the site's database, and returns the URL through it.
pub async fn through_pgbouncer(site: &Site) -> Result<(PgBouncer, String)> {
    let url = Url::parse(&site.database_url())?;
    let bouncer = PgBouncer::start(url.port().context("no port")?).await?;
    let through = bouncer.url(url.path().trim_start_matches('/'));
    Ok((bouncer, through))
}

/// Starts a proxy before the site's database, and returns the URL through it.
pub async fn behind_proxy(site: &Site) -> Result<(Proxy, String)> {
    let mut url = Url::parse(&site.database_url())?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, url.port().context("no port")?));
    let proxy = Proxy::start(vec![server]).await?;
    let port = Some(proxy.address().port());
    url.set_port(port).ok().context("no port")?;
    Ok((proxy, url.into()))
}
