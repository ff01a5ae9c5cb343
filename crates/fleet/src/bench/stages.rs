//! The stages of the benchmark, one function each; the larger ones have files of their own.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Stage, climb, costs, history,
    load::{self, FASTEST, HeartbeatCost, IDLE, Load, TIMEOUT},
    note, outages,
    results::{Enrol, Fifty, Handshake, Memory, Results, Rss},
    sizes::{Sizes, interval},
    system::{SERVICE, System, SystemKind},
};
use crate::{
    fleet::{Fleet, Totals},
    lab::instances_for,
    plan::{Plan, Task},
    run::report::Quantiles,
};

/// More registrations per second than the service can do, without all agents arriving at once.
const ENROL_ARRIVALS: f64 = 1_000.0;

pub async fn run(stage: Stage, sizes: &Sizes, results: &mut Results) -> anyhow::Result<()> {
    match stage {
        Stage::Rss => results.rss = rss(sizes).await?,
        Stage::Pace => results.pace = Some(costs::pace(sizes).await?),
        Stage::Low => results.low = Some(costs::low(sizes).await?),
        Stage::Saturate => results.saturate = Some(costs::saturate(sizes).await?),
        Stage::Instances => results.instances = Some(costs::instances(sizes).await?),
        Stage::History => results.history = Some(history::run(sizes).await?),
        Stage::Hour => results.hour = Some(history::run_hour(sizes).await?),
        Stage::Enrol => results.enrol = Some(enrol(sizes).await?),
        Stage::Handshake => results.handshake = Some(handshake(sizes).await?),
        Stage::Storm => results.storm = Some(outages::storm(sizes).await?),
        Stage::Kill => results.kill = Some(outages::kill(sizes).await?),
        Stage::Restart => {
            results.restart = vec![
                outages::restart(1, sizes).await?,
                outages::restart(3, sizes).await?,
            ];
        }
        Stage::Growth => results.growth = growth(sizes).await?,
        Stage::Fifty => results.fifty = Some(fifty(sizes).await?),
        Stage::Climb => results.climb = Some(climb::run(sizes).await?),
    }
    Ok(())
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
    let load = Load::of(kind, agents, IDLE, sizes).await?;
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
        second_tries: Some(totals.errors.values().sum()),
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

async fn growth(sizes: &Sizes) -> anyhow::Result<Vec<HeartbeatCost>> {
    let mut all = Vec::new();
    for agents in sizes.growth.iter().copied() {
        all.push(
            costs::paced(SERVICE, agents, sizes.growth_rate, sizes)
                .await?
                .0,
        );
    }
    Ok(all)
}

async fn fifty(sizes: &Sizes) -> anyhow::Result<Fifty> {
    let agents = sizes.fifty_agents;
    let instances = instances_for(agents);
    let kind = SystemKind::Service { instances };
    let mut load = Load::of(kind, agents, Duration::from_secs(30), sizes).await?;
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
