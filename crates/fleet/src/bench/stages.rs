//! The stages of the benchmark, one function each.

use std::time::Duration;

use anyhow::Context;
use svc_proto::contract::limits::REPORT_INTERVAL;
use svc_testkit::transactions;
use tokio::time::{Instant, sleep};

use super::{
    Stage, climb,
    load::{self, HeartbeatCost, Load},
    note,
    results::{Enrol, Fifty, Handshake, Kill, Memory, Pace, Results, Rss, Saturate, Storm},
    sizes::{LOW_RATE, Sizes, interval},
    sql,
    system::{System, SystemKind},
};
use crate::{
    fleet::{Fleet, Totals},
    lab::{Lab, instances_for},
    plan::{Plan, Task},
    run::report::Quantiles,
};

/// As fast as the service lets an agent report.
const FASTEST: Duration = REPORT_INTERVAL;
/// So long that no agent reports while memory is read.
const IDLE: Duration = Duration::from_mins(55);
const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// More registrations per second than the service can do, without all agents arriving at once.
const ENROL_ARRIVALS: f64 = 1_000.0;
/// The default of INGEST_DB_POOL_SIZE, plus the connection that listens for notifications.
const POOL: u64 = 16 + 1;

const SERVICE: SystemKind = SystemKind::Service { instances: 1 };

pub async fn run(stage: Stage, sizes: &Sizes, results: &mut Results) -> anyhow::Result<()> {
    match stage {
        Stage::Rss => results.rss = rss(sizes).await?,
        Stage::Pace => results.pace = Some(pace(sizes).await?),
        Stage::Low => results.low = Some(low(sizes).await?),
        Stage::Saturate => results.saturate = Some(saturate(sizes).await?),
        Stage::Enrol => results.enrol = Some(enrol(sizes).await?),
        Stage::Handshake => results.handshake = Some(handshake(sizes).await?),
        Stage::Storm => results.storm = Some(storm(sizes).await?),
        Stage::Kill => results.kill = Some(kill(sizes).await?),
        Stage::Growth => results.growth = growth(sizes).await?,
        Stage::Fifty => results.fifty = Some(fifty(sizes).await?),
        Stage::Climb => results.climb = Some(climb::run(sizes).await?),
    }
    Ok(())
}

async fn load(
    kind: SystemKind,
    agents: u32,
    each: Duration,
    sizes: &Sizes,
) -> anyhow::Result<Load> {
    let system = System::start(kind).await?;
    let plan = Plan {
        interval: Some(each),
        ramp: sizes.ramp(agents),
        closed_loop: each == FASTEST || each == IDLE,
        ..system.plan(agents).await?
    };
    Load::start(system, plan).await
}

async fn rss(sizes: &Sizes) -> anyhow::Result<Vec<Rss>> {
    let mut all = Vec::new();
    for agents in sizes.rss.iter().copied() {
        all.push(Rss {
            agents,
            echo: memory(SystemKind::Echo, agents, sizes).await?,
            service: memory(SERVICE, agents, sizes).await?,
        });
    }
    Ok(all)
}

/// Memory per agent, idle and after each agent has reported as fast as it may.
async fn memory(kind: SystemKind, agents: u32, sizes: &Sizes) -> anyhow::Result<Memory> {
    let load = load(kind, agents, IDLE, sizes).await?;
    let idle_kib = load.kib_per_agent().await?;
    load.set_interval(FASTEST).await?;
    let used = load.measure(sizes.window).await?;
    load.finish().await?;
    note(&format!(
        "{kind:?}: {idle_kib:.1} KiB idle, {:.1} KiB used",
        used.kib_per_agent
    ));
    Ok(Memory {
        idle_kib,
        used_kib: used.kib_per_agent,
    })
}

async fn paced(
    kind: SystemKind,
    agents: u32,
    rate: f64,
    sizes: &Sizes,
) -> anyhow::Result<(HeartbeatCost, System)> {
    let each = interval(agents, rate);
    let load = load(kind, agents, each, sizes).await?;
    load.set_interval(each).await?;
    let cost = load.measure(sizes.window).await?;
    let (system, _) = load.finish().await?;
    Ok((cost, system))
}

async fn pace(sizes: &Sizes) -> anyhow::Result<Pace> {
    let (agents, rate) = (sizes.pace_agents, sizes.pace_rate);
    let (echo, system) = paced(SystemKind::Echo, agents, rate, sizes).await?;
    drop(system);
    let (service, mut system) = paced(SERVICE, agents, rate, sizes).await?;
    let lab = system.lab()?;
    let batch = batch_size(lab).await?;
    stop_instances(lab).await?;
    let sql = sql::run(lab, batch, service.per_second, sizes.window).await?;
    note(&format!(
        "bare SQL: {:.1} µs at batches of {batch}",
        sql.postgres_us
    ));
    Ok(Pace { service, echo, sql })
}

/// The mean number of heartbeats per transaction, by the service's own metrics.
async fn batch_size(lab: &Lab) -> anyhow::Result<u64> {
    let counts = transactions(&[lab.instances[0].http]).await?;
    let batches = counts.get("samples_append");
    let batches = *batches.context("the metrics have no count of batches")? as f64;
    let stored = lab
        .number("SELECT sum(stored_count) FROM agent_state")
        .await?;
    Ok((stored as f64 / batches.max(1.0)).round().max(1.0) as u64)
}

/// Idle instances would add to the CPU time of PostgreSQL.
async fn stop_instances(lab: &mut Lab) -> anyhow::Result<()> {
    for instance in lab.instances.drain(..) {
        instance.stop().await?;
    }
    Ok(())
}

async fn low(sizes: &Sizes) -> anyhow::Result<HeartbeatCost> {
    Ok(paced(SERVICE, sizes.low_agents, LOW_RATE, sizes).await?.0)
}

async fn saturate(sizes: &Sizes) -> anyhow::Result<Saturate> {
    let agents = sizes.saturate_agents;
    let bare = load(SystemKind::Echo, agents, FASTEST, sizes).await?;
    let echo = bare.measure(sizes.window).await?;
    bare.finish().await?;
    let load = load(SERVICE, agents, FASTEST, sizes).await?;
    let service = load.measure(sizes.window).await?;
    load.set_interval(interval(agents, service.per_second / 2.0))
        .await?;
    let half = load.measure(sizes.window).await?;
    load.finish().await?;
    Ok(Saturate {
        service,
        echo,
        half,
    })
}

async fn enrol(sizes: &Sizes) -> anyhow::Result<Enrol> {
    let system = System::start(SERVICE).await?;
    let agents = sizes.enrol_agents;
    let plan = Plan {
        ramp: interval(agents, ENROL_ARRIVALS),
        ..system.plan(agents).await?
    };
    let before = system.usage().await?;
    let (took, totals) = load::enrol(plan).await?;
    let after = system.usage().await?;
    let each = |us: u64| us as f64 / f64::from(agents);
    Ok(Enrol {
        agents,
        per_second: f64::from(agents) / took.as_secs_f64(),
        service_us: each(after.services.cpu_us - before.services.cpu_us),
        postgres_us: each(after.postgres.cpu_us - before.postgres.cpu_us),
        times: Quantiles::of(&totals.latencies.enrol),
    })
}

async fn handshake(sizes: &Sizes) -> anyhow::Result<Handshake> {
    let system = System::start(SERVICE).await?;
    let plan = Plan {
        task: Task::Handshake,
        ..system.plan(sizes.handshakers).await?
    };
    let fleet = Fleet::start(plan, 0)?;
    let started = |totals: &Totals| totals.counts.handshakes > 0;
    fleet
        .until("handshakes have started", TIMEOUT, started)
        .await?;
    let (usage_before, before, began) = (system.usage().await?, fleet.totals(), Instant::now());
    sleep(sizes.window.min(Duration::from_secs(20))).await;
    let (usage_after, after, time) = (system.usage().await?, fleet.totals(), began.elapsed());
    fleet.finish().await?;
    let done = (after.counts.handshakes - before.counts.handshakes).max(1) as f64;
    Ok(Handshake {
        per_second: done / time.as_secs_f64(),
        service_us: (usage_after.services.cpu_us - usage_before.services.cpu_us) as f64 / done,
    })
}

async fn storm(sizes: &Sizes) -> anyhow::Result<Storm> {
    let agents = sizes.storm_agents;
    let load = load(SERVICE, agents, Duration::from_secs(5), sizes).await?;
    let before = load.system.usage().await?;
    let began = Instant::now();
    let mark = load.fleet.mark()?;
    load.fleet.order(|orders| orders.cuts += 1)?;
    let again = |totals: &Totals| totals.counts.streams >= 2 * u64::from(agents);
    load.fleet
        .until("all agents are connected again", TIMEOUT, again)
        .await?;
    let connected = began.elapsed();
    load.fleet.all_back(mark, TIMEOUT).await?;
    let (back, after) = (began.elapsed(), load.system.usage().await?);
    load.finish().await?;
    let service = after.services.cpu_us - before.services.cpu_us;
    Ok(Storm {
        agents,
        connected_seconds: connected.as_secs_f64(),
        back_seconds: back.as_secs_f64(),
        service_us: service as f64 / f64::from(agents),
        statements: after.statements - before.statements,
    })
}

/// All agents connect to the first of two instances, which is then killed.
async fn kill(sizes: &Sizes) -> anyhow::Result<Kill> {
    let agents = sizes.kill_agents;
    let system = System::start(SystemKind::Service { instances: 2 }).await?;
    let plan = Plan {
        interval: Some(Duration::from_secs(30)),
        ramp: sizes.ramp(agents),
        spread: false,
        ..system.plan(agents).await?
    };
    let mut load = Load::start(system, plan).await?;
    load.fleet.open_window();
    let lab = load.system.lab()?;
    lab.instances.remove(0).kill().await?;
    let mark = load.fleet.mark()?;
    let (url, began) = (lab.database_url(), Instant::now());
    let most_connections = most_connections(&url, load.fleet.all_back(mark, TIMEOUT)).await?;
    let back = began.elapsed();
    let absence = Quantiles::of(&load.fleet.totals().window.absence);
    load.finish().await?;
    Ok(Kill {
        agents,
        absence,
        back_seconds: back.as_secs_f64(),
        most_connections,
        pool: POOL,
    })
}

/// Runs `work`, and returns the largest number of connections to PostgreSQL meanwhile, without its own.
async fn most_connections(
    url: &str,
    work: impl Future<Output = anyhow::Result<Duration>>,
) -> anyhow::Result<u64> {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let mut work = std::pin::pin!(work);
    let mut most = 0;
    loop {
        tokio::select! {
            done = &mut work => return done.map(|_| most),
            () = sleep(POLL_INTERVAL) => most = most.max(svc_sandbox::query(url, sql).await?.parse()?),
        }
    }
}

async fn growth(sizes: &Sizes) -> anyhow::Result<Vec<HeartbeatCost>> {
    let mut all = Vec::new();
    for agents in sizes.growth.iter().copied() {
        all.push(paced(SERVICE, agents, sizes.growth_rate, sizes).await?.0);
    }
    Ok(all)
}

async fn fifty(sizes: &Sizes) -> anyhow::Result<Fifty> {
    let agents = sizes.fifty_agents;
    let instances = instances_for(agents);
    let kind = SystemKind::Service { instances };
    let mut load = load(kind, agents, Duration::from_secs(30), sizes).await?;
    let cost = load.measure(sizes.fifty_time).await?;
    let offline = load.system.lab()?.times_offline().await?;
    let (_, books) = load.finish().await?;
    Ok(Fifty {
        instances,
        cost,
        offline,
        acked: books.acked,
    })
}
