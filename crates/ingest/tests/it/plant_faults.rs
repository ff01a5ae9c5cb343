//! Faults of the database under load that are shown twice: briefly by `cargo test`,
//! and at full length by `make chaos`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use svc_sandbox::{PgBouncer, Proxy};
use svc_store::{AgentId, DatabaseUrl, HostId, Range, Store, StoreOptions};

use crate::{
    agents::{AUTO, FakeAgent, machine, token},
    fleet::{Fleet, Pace},
    harness::{Instance, Site, eventually},
    plant::{BRISK, Kind, Plant, metric, on_ports_of, range, seed},
};

/// Slower than agents may report, so that they catch up with what was held up.
const STEADY: Pace = Pace {
    every: Duration::from_secs(1),
    ..BRISK
};

/// The database behind a proxy, and its URL there.
async fn proxied(site: &Site) -> Result<(Proxy, String)> {
    let mut url = url::Url::parse(&site.database_url())?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, url.port().context("a port")?));
    let proxy = Proxy::start(vec![server]).await?;
    url.set_port(Some(proxy.address().port()))
        .ok()
        .context("a port")?;
    Ok((proxy, url.into()))
}

/// Cuts the connection right after COMMIT was sent, so many times: PostgreSQL
/// commits, and nobody is told.
pub async fn commits_cut(kind: Kind, agents: u32, times: usize) -> Result<()> {
    let plant = Plant::new(kind).await?;
    let (proxy, url) = proxied(&plant.site).await?;
    let instance = plant.instance().set("DATABASE_URL", url).start().await?;
    let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, agents, STEADY).await?;
    for _ in 0..times {
        proxy.cut_once_said(b"COMMIT");
        eventually("a commit was cut", async || proxy.was_said()).await?;
    }
    proxy.heal()?;
    fleet.catches_up().await?;
    fleet.audit(&plant.site).await
}

/// Resets all connections to the database at random moments, so many times.
pub async fn resets(kind: Kind, agents: u32, times: usize) -> Result<()> {
    let plant = Plant::with_own_server(kind).await?;
    let (proxy, url) = proxied(&plant.site).await?;
    let instance = plant.instance().set("DATABASE_URL", url).start().await?;
    let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, agents, STEADY).await?;
    for _ in 0..times {
        let pause = rand::random_range(1..50);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        proxy.cut_all();
    }
    fleet.all_acked_since(Instant::now()).await?;
    fleet.audit(&plant.site).await?;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'svc' AND state LIKE 'idle in transaction%'";
    eventually(
        "no transaction is left open, no connection taken",
        async || {
            let open = plant.site.psql(open).await;
            let in_use = metric(instance.http, "database_pool_in_use").await;
            open.is_ok_and(|open| open == "0") && in_use.is_ok_and(|in_use| in_use == 0.0)
        },
    )
    .await
}

/// While the metrics table is locked, agents register and are revoked. Returns how
/// long the slower of the two took at most.
pub async fn locked(plant: &Plant, instance: &Instance, seconds: u64) -> Result<Duration> {
    let secret = token(&plant.site, AUTO).await?;
    let lock =
        format!("BEGIN; LOCK TABLE host_metrics IN SHARE MODE; SELECT pg_sleep({seconds}); COMMIT");
    let newcomers = async {
        let (end, mut slowest) = (
            Instant::now() + Duration::from_secs(seconds),
            Duration::ZERO,
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        for number in 10_000.. {
            let asked = Instant::now();
            let agent = FakeAgent::on(machine(number))?;
            let answer = agent.register(instance.grpc, &secret).await?;
            let jwt = answer.credential.context("a credential")?.jwt;
            slowest = slowest.max(asked.elapsed());
            let mut beat = agent.beat(instance.grpc, &jwt).await?;
            let revoked = Instant::now();
            let id = answer.agent_id;
            plant
                .site
                .psql(&format!("SELECT revoke_agent('{id}', 'test', 'a test')"))
                .await?;
            let end_of_stream = beat.end().await?.context("a refusal")?;
            ensure!(end_of_stream.reason == "AGENT_REVOKED", "{end_of_stream:?}");
            slowest = slowest.max(revoked.elapsed());
            if Instant::now() > end {
                break;
            }
        }
        Ok(slowest)
    };
    let (locked, slowest) = tokio::join!(plant.site.psql(&lock), newcomers);
    locked?;
    slowest
}

/// Writers that know nothing of each other, with batches of the same agents in
/// orders of their own, each from a little before where it thinks they stand.
/// Returns how many batches there were.
pub async fn overlapping_writers(agents: usize, length: Duration) -> Result<u64> {
    let site = Site::new().await?;
    let agents = seed(&site, agents).await?;
    let end = Instant::now() + length;
    let mut writers = Vec::new();
    for _ in 0..4 {
        let url = DatabaseUrl::parse(&site.database_url())?;
        let store = Store::new(url, StoreOptions::default())?;
        store.partitions_create(Duration::from_hours(24)).await?;
        writers.push(write(store, agents.clone(), end));
    }
    let batches = futures_util::future::try_join_all(writers).await?;
    let books = "SELECT count(*), bool_and(s.stored_count = s.acked_seq), bool_and(s.acked_seq = m.rows AND m.rows = m.seqs)
                   FROM agent_state s JOIN (SELECT agent_id, count(*) AS rows, count(DISTINCT seq) AS seqs
                                              FROM host_metrics GROUP BY agent_id) m USING (agent_id)";
    ensure!(site.psql(books).await? == format!("{}|t|t", agents.len()));
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
            .map(|agent| range(*agent, first, last))
            .collect();
        let marks = store.samples_append(&ranges).await?;
        at = marks.iter().map(|mark| mark.acked_seq).min().unwrap_or(0);
        batches += 1;
    }
    Ok(batches)
}

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Server(usize),
    Consumer(usize),
    Postgres,
    Nats,
}

impl Victim {
    fn any(kind: Kind) -> Self {
        let choice = match kind {
            Kind::Memory => rand::random_range(0..3),
            Kind::Nats => rand::random_range(0..6),
        };
        match choice {
            0 | 1 => Self::Server(choice),
            2 => Self::Postgres,
            3 | 4 => Self::Consumer(choice - 3),
            _ => Self::Nats,
        }
    }
}

/// Kills a server, a consumer, PostgreSQL or NATS at a random moment under load, and
/// starts it again, so many times. The books are held against the ledgers every time.
pub async fn killed_at_random(kind: Kind, agents: u32, rounds: usize) -> Result<()> {
    let mut plant = Plant::with_own_server(kind).await?;
    let server = |plant: &Plant| match kind {
        Kind::Memory => plant.process(),
        Kind::Nats => plant.process().set("INGEST_CONSUME", "false"),
    };
    let mut servers = [server(&plant).start().await?, server(&plant).start().await?];
    let mut consumers = Vec::new();
    for _ in 0..(if kind == Kind::Nats { 2 } else { 0 }) {
        consumers.push(plant.consumer().start().await?);
    }
    let addresses = servers.each_ref().map(|server| server.grpc);
    let fleet = Fleet::start(&plant.site, &addresses, 0, agents, BRISK).await?;
    for round in 0..rounds {
        fleet.resume();
        let victim = Victim::any(kind);
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..1500))).await;
        match victim {
            Victim::Server(index) => {
                servers[index].signal(Signal::KILL)?;
                servers[index].ended().await?;
                let builder = on_ports_of(server(&plant), &servers[index]);
                servers[index] = builder.start().await?;
            }
            Victim::Consumer(index) => {
                consumers[index].signal(Signal::KILL)?;
                consumers[index].ended().await?;
                consumers[index] = on_ports_of(plant.consumer(), &consumers[index])
                    .start()
                    .await?;
            }
            Victim::Postgres => {
                plant.site.server().stop_immediate().await?;
                plant.site.server().start_again().await?;
            }
            Victim::Nats => {
                plant.nats().kill().await?;
                plant.nats().start_again().await?;
            }
        }
        let books = fleet.audit(&plant.site).await;
        books.with_context(|| format!("{kind:?}, round {round}, {victim:?}"))?;
    }
    Ok(())
}

/// The site's database through a PgBouncer; its connection string goes with it.
pub async fn bounced(site: &Site) -> Result<(PgBouncer, String)> {
    let url = url::Url::parse(&site.database_url())?;
    let bouncer = PgBouncer::start(url.port().context("a port")?).await?;
    let through = bouncer.url(url.path().trim_start_matches('/'));
    Ok((bouncer, through))
}
