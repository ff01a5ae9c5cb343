//! The stages, one function each.

use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    Stage, far,
    load::{Cost, Load, Shape},
    note,
    results::{Enrol, Fifty, Handshake, Kill, Memory, Pace, Results, Rss, Saturate, Storm},
    sizes::{LOW_RATE, Sizes, interval},
    sql,
    subject::{Kind, Subject},
};
use crate::{
    fleet::{Fleet, Totals},
    lab::{Lab, http},
    plan::{Plan, Task},
    run::report::Quantiles,
};

/// An agent may report twice a second: this is as fast as the service lets it.
const FASTEST: Duration = Duration::from_millis(500);
/// So long that nobody reports while memory is looked at.
const IDLE: Duration = Duration::from_mins(55);
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(500);
const AGENTS_PER_INSTANCE: u32 = 18_000;
/// More registrations a second than any service here can do, and no stampede of all at once.
const ENROL_ARRIVALS: f64 = 1_000.0;
/// The default of INGEST_DB_POOL_SIZE, and the connection that listens.
const POOL: u64 = 16 + 1;

const SERVICE: Kind = Kind::Service { instances: 1 };

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
        Stage::Far => results.far = Some(far::run(sizes).await?),
    }
    Ok(())
}

async fn load(kind: Kind, agents: u32, each: Duration, sizes: &Sizes) -> anyhow::Result<Load> {
    let shape = Shape {
        agents,
        interval: each,
        ramp: sizes.ramp(agents),
        closed_loop: each == FASTEST || each == IDLE,
        spread: true,
    };
    Load::start(Subject::start(kind).await?, shape).await
}

async fn rss(sizes: &Sizes) -> anyhow::Result<Vec<Rss>> {
    let mut all = Vec::new();
    for agents in sizes.rss.iter().copied() {
        all.push(Rss {
            agents,
            echo: memory(Kind::Echo, agents, sizes).await?,
            service: memory(SERVICE, agents, sizes).await?,
        });
    }
    Ok(all)
}

/// Idle, and after each agent has reported as fast as it may.
async fn memory(kind: Kind, agents: u32, sizes: &Sizes) -> anyhow::Result<Memory> {
    let load = load(kind, agents, IDLE, sizes).await?;
    let idle_kib = load.kib_per_agent().await?;
    load.pace(FASTEST).await?;
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
    kind: Kind,
    agents: u32,
    rate: f64,
    sizes: &Sizes,
) -> anyhow::Result<(Cost, Subject)> {
    let each = interval(agents, rate);
    let load = load(kind, agents, each, sizes).await?;
    load.pace(each).await?;
    let cost = load.measure(sizes.window).await?;
    let (subject, _) = load.finish().await?;
    Ok((cost, subject))
}

async fn pace(sizes: &Sizes) -> anyhow::Result<Pace> {
    let (agents, rate) = (sizes.pace_agents, sizes.pace_rate);
    let (echo, subject) = paced(Kind::Echo, agents, rate, sizes).await?;
    drop(subject);
    let (service, mut subject) = paced(SERVICE, agents, rate, sizes).await?;
    let lab = subject.lab()?;
    let batch = batch_size(lab).await?;
    stop_instances(lab).await?;
    let sql = sql::run(lab, batch, service.per_second, sizes.window).await?;
    note(&format!(
        "bare SQL: {:.1} µs at batches of {batch}",
        sql.postgres_us
    ));
    Ok(Pace { service, echo, sql })
}

/// Heartbeats a transaction, by what the service itself counts over all its time.
async fn batch_size(lab: &Lab) -> anyhow::Result<u64> {
    let (_, page) = http::get(lab.instances[0].http, "/metrics").await?;
    let line = |line: &&str| {
        line.starts_with("svc_ingest_database_transactions_total")
            && line.contains("name=\"samples_append\"")
            && line.contains("outcome=\"ok\"")
    };
    let line = page.lines().find(line).context("no count of batches")?;
    let batches: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
    let stored = lab
        .number("SELECT sum(stored_count) FROM agent_state")
        .await?;
    Ok((stored as f64 / batches.max(1.0)).round().max(1.0) as u64)
}

/// An idle instance costs PostgreSQL something, too.
async fn stop_instances(lab: &mut Lab) -> anyhow::Result<()> {
    for instance in lab.instances.drain(..) {
        instance.signal(Signal::TERM)?;
        instance.wait_for_end().await?;
    }
    Ok(())
}

async fn low(sizes: &Sizes) -> anyhow::Result<Cost> {
    Ok(paced(SERVICE, sizes.low_agents, LOW_RATE, sizes).await?.0)
}

async fn saturate(sizes: &Sizes) -> anyhow::Result<Saturate> {
    let agents = sizes.saturate_agents;
    let bare = load(Kind::Echo, agents, FASTEST, sizes).await?;
    let echo = bare.measure(sizes.window).await?;
    bare.finish().await?;
    let load = load(SERVICE, agents, FASTEST, sizes).await?;
    let service = load.measure(sizes.window).await?;
    load.pace(interval(agents, service.per_second / 2.0))
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
    let subject = Subject::start(SERVICE).await?;
    let agents = sizes.enrol_agents;
    let plan = Plan {
        ramp: interval(agents, ENROL_ARRIVALS),
        task: Task::Enrol,
        ..Plan::local(agents, subject.targets(), subject.token(agents).await?)
    };
    let before = subject.spent().await?;
    let fleet = Fleet::start(plan, 0)?;
    let all = |totals: &Totals| totals.counts.registered >= u64::from(agents);
    let took = fleet.until("all are registered", PATIENCE, all).await?;
    let after = subject.spent().await?;
    let totals = fleet.finish().await?.totals;
    let each = |us: u64| us as f64 / f64::from(agents);
    Ok(Enrol {
        agents,
        per_second: f64::from(agents) / took.as_secs_f64(),
        service_us: each(after.services.cpu_us - before.services.cpu_us),
        postgres_us: each(after.postgres.cpu_us - before.postgres.cpu_us),
        times: Quantiles::of(&totals.clocks.enrol),
    })
}

async fn handshake(sizes: &Sizes) -> anyhow::Result<Handshake> {
    let subject = Subject::start(SERVICE).await?;
    let plan = Plan {
        task: Task::Handshake,
        ..Plan::local(sizes.handshakers, subject.targets(), String::new())
    };
    let fleet = Fleet::start(plan, 0)?;
    let begun = |totals: &Totals| totals.counts.handshakes > 0;
    fleet.until("handshakes begin", PATIENCE, begun).await?;
    let (spent, told, began) = (subject.spent().await?, fleet.totals(), Instant::now());
    sleep(sizes.window.min(Duration::from_secs(20))).await;
    let (spends, tells, time) = (subject.spent().await?, fleet.totals(), began.elapsed());
    fleet.finish().await?;
    let done = (tells.counts.handshakes - told.counts.handshakes).max(1) as f64;
    Ok(Handshake {
        per_second: done / time.as_secs_f64(),
        service_us: (spends.services.cpu_us - spent.services.cpu_us) as f64 / done,
    })
}

async fn storm(sizes: &Sizes) -> anyhow::Result<Storm> {
    let agents = sizes.storm_agents;
    let load = load(SERVICE, agents, Duration::from_secs(5), sizes).await?;
    let before = load.subject.spent().await?;
    let began = Instant::now();
    let mark = load.fleet.mark()?;
    load.fleet.order(|orders| orders.cuts += 1)?;
    let again = |totals: &Totals| totals.counts.streams >= 2 * u64::from(agents);
    load.fleet
        .until("all are connected again", PATIENCE, again)
        .await?;
    let connected = began.elapsed();
    load.fleet.all_back(mark, PATIENCE).await?;
    let (back, after) = (began.elapsed(), load.subject.spent().await?);
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

/// All agents begin at the first of two instances, which is killed.
async fn kill(sizes: &Sizes) -> anyhow::Result<Kill> {
    let agents = sizes.kill_agents;
    let shape = Shape {
        agents,
        interval: Duration::from_secs(30),
        ramp: sizes.ramp(agents),
        closed_loop: false,
        spread: false,
    };
    let subject = Subject::start(Kind::Service { instances: 2 }).await?;
    let mut load = Load::start(subject, shape).await?;
    load.fleet.open_window();
    let lab = load.subject.lab()?;
    lab.instances[0].signal(Signal::KILL)?;
    lab.instances[0].wait_for_end().await?;
    lab.instances.remove(0);
    let mark = load.fleet.mark()?;
    let (url, began) = (lab.database_url(), Instant::now());
    let most_connections = most_connections(&url, load.fleet.all_back(mark, PATIENCE)).await?;
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

/// The most connections that PostgreSQL holds while `work` is done, its own questions aside.
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
            () = sleep(LOOK) => most = most.max(svc_sandbox::query(url, sql).await?.parse()?),
        }
    }
}

async fn growth(sizes: &Sizes) -> anyhow::Result<Vec<Cost>> {
    let mut all = Vec::new();
    for agents in sizes.growth.iter().copied() {
        all.push(paced(SERVICE, agents, sizes.growth_rate, sizes).await?.0);
    }
    Ok(all)
}

async fn fifty(sizes: &Sizes) -> anyhow::Result<Fifty> {
    let agents = sizes.fifty_agents;
    let instances = agents.div_ceil(AGENTS_PER_INSTANCE).max(1) as usize;
    let kind = Kind::Service { instances };
    let mut load = load(kind, agents, Duration::from_secs(30), sizes).await?;
    let cost = load.measure(sizes.fifty_time).await?;
    let offline = load.subject.lab()?.times_offline().await?;
    let (_, books) = load.finish().await?;
    Ok(Fifty {
        instances,
        cost,
        offline,
        acked: books.acked,
    })
}
