//! The stages about a connected agent and a heartbeat: memory, a steady pace, saturation, many instances.

use std::time::Duration;

use anyhow::Context;
use svc_harness::transactions;

use super::{
    load::{COLUMNS, FASTEST, HeartbeatCost, IDLE, Load},
    sizes::{Scale, WINDOW, interval},
    sql::{self, Schedule, SqlCost},
    system::{self, SERVICE, System, SystemKind},
};
use crate::{
    figures::{Figures, Goal, Table},
    fleet::note,
    lab::Lab,
};

/// Autovacuum looks for work once a minute. At a low rate what it finds is a good part of all that PostgreSQL does, so
/// every measurement must have as many rounds of it.
const TWO_ROUNDS_OF_AUTOVACUUM: Duration = Duration::from_mins(2);
const MANY_INSTANCES: usize = 10;

/// Memory per agent, idle and after each agent has reported as fast as it may.
pub async fn rss(scale: Scale) -> anyhow::Result<Figures> {
    let columns = [
        "service idle, KiB per agent",
        "after traffic",
        "bare echo idle",
        "after traffic",
    ];
    let mut figures = Figures::default();
    let mut table = Table::new("agents", &columns);
    for agents in [5_000, 18_000].map(|full| scale.agents(full)) {
        let [echo_idle, echo_used] = memory(SystemKind::Echo, agents).await?;
        let [idle, used] = memory(SERVICE, agents).await?;
        table = table.row(agents.to_string(), [idle, used, echo_idle, echo_used]);
        let name = format!("memory after traffic at {agents} agents, × bare echo");
        figures
            .goals
            .push(Goal::ratio(name, used / echo_used, 1.15));
    }
    figures.tables.push(table);
    Ok(figures)
}

async fn memory(kind: SystemKind, agents: u32) -> anyhow::Result<[f64; 2]> {
    let load = Load::start(kind, agents, IDLE).await?;
    let idle = load.kib_per_agent().await?;
    load.set_interval(FASTEST).await?;
    let used = load.measure(WINDOW).await?.kib_per_agent;
    load.finish().await?;
    note(&format!("{kind:?}: {idle:.1} KiB idle, {used:.1} KiB used"));
    Ok([idle, used])
}

/// The cost of `rate` heartbeats per second, and the system, whose fleet has left.
async fn paced(
    kind: SystemKind,
    agents: u32,
    rate: f64,
    window: Duration,
) -> anyhow::Result<(HeartbeatCost, System)> {
    let each = interval(agents, rate);
    let load = Load::start(kind, agents, each).await?;
    load.set_interval(each).await?;
    let cost = load.measure(window).await?;
    Ok((cost, load.finish().await?))
}

pub async fn pace(scale: Scale) -> anyhow::Result<Figures> {
    let (agents, rate) = (scale.agents(10_000), scale.rate(3_300.0));
    let (echo, system) = paced(SystemKind::Echo, agents, rate, WINDOW).await?;
    drop(system);
    let (service, mut system) = paced(SERVICE, agents, rate, WINDOW).await?;
    let lab = system.lab()?;
    let schedule = schedule(lab, &service).await?;
    stop_instances(lab).await?;
    let bare = shown("bare SQL", sql::bare(lab, schedule).await?);
    let minimal = shown("minimal SQL", sql::minimal(lab, schedule).await?);
    let table = Table::new(format!("{agents} agents"), &COLUMNS)
        .row("service", service.figures())
        .row("bare echo", echo.figures())
        .row(batches("bare SQL", &bare), bare.figures())
        .row(batches("minimal SQL", &minimal), minimal.figures());
    let ratio = service.service_us / echo.service_us;
    let above_bare = service.postgres_us / bare.postgres_us;
    Ok(Figures {
        tables: vec![table],
        goals: vec![
            Goal::ratio("service CPU, × bare echo", ratio, 1.8),
            Goal::ratio("PostgreSQL CPU, × bare SQL", above_bare, 1.5),
            above_minimal(&service, &minimal),
        ],
        ..Figures::default()
    })
}

/// A costly statement shows here, whatever the service adds to it.
fn above_minimal(service: &HeartbeatCost, minimal: &SqlCost) -> Goal {
    let ratio = service.postgres_us / minimal.postgres_us;
    Goal::ratio("PostgreSQL CPU, × minimal SQL", ratio, 2.0)
}

fn batches(name: &str, cost: &SqlCost) -> String {
    format!("{name}, batches of {}", cost.batch)
}

fn shown(name: &str, cost: SqlCost) -> SqlCost {
    let (us, rate) = (cost.postgres_us, cost.per_second);
    note(&format!(
        "{}: {us:.1} µs at {rate:.0}/s",
        batches(name, &cost)
    ));
    cost
}

/// A loop at the rate and in the batches that were measured: the mean number of heartbeats per transaction so far, by
/// the service's own metrics.
async fn schedule(lab: &Lab, service: &HeartbeatCost) -> anyhow::Result<Schedule> {
    let counts = transactions(&[lab.instances[0].http]).await?;
    let batches = counts.get("samples_append");
    let batches = *batches.context("the metrics have no count of batches")? as f64;
    let stored = lab
        .number("SELECT sum(stored_count) FROM agent_state")
        .await?;
    Ok(Schedule {
        batch: (stored as f64 / batches.max(1.0)).round().max(1.0) as u64,
        rate: service.per_second,
        time: WINDOW,
    })
}

/// Idle instances would add to the CPU time of PostgreSQL.
pub async fn stop_instances(lab: &mut Lab) -> anyhow::Result<()> {
    for instance in lab.instances.drain(..) {
        instance.stop().await?;
    }
    Ok(())
}

pub async fn saturate(scale: Scale) -> anyhow::Result<Figures> {
    let agents = scale.agents(12_000);
    let bare = Load::start(SystemKind::Echo, agents, FASTEST).await?;
    let echo = bare.measure(WINDOW).await?;
    bare.finish().await?;
    let mut load = Load::start(SERVICE, agents, FASTEST).await?;
    let service = load.measure(WINDOW).await?;
    let schedule = schedule(load.system.lab()?, &service).await?;
    load.set_interval(interval(agents, service.per_second / 2.0))
        .await?;
    let half = load.measure(WINDOW).await?;
    let mut system = load.finish().await?;
    let lab = system.lab()?;
    stop_instances(lab).await?;
    let minimal = shown("minimal SQL", sql::minimal(lab, schedule).await?);
    let table = Table::new(format!("{agents} agents"), &COLUMNS)
        .row("service", service.figures())
        .row("bare echo", echo.figures())
        .row(batches("minimal SQL", &minimal), minimal.figures())
        .row("service at half of that", half.figures());
    let (rate, p99) = (service.per_second, half.ack.p99_ms);
    Ok(Figures {
        tables: vec![table],
        goals: vec![
            Goal::at_least("durable heartbeats/s", rate, 20_000.0),
            above_minimal(&service, &minimal),
            Goal::ratio("acknowledgement p99 at half load, ms", p99, 1_000.0),
        ],
        ..Figures::default()
    })
}

/// The same fleet at the same low rate on one instance, on many, and on one again: batches become small, and the
/// periodic work of each instance is multiplied. The ratio compares the many with the mean of one before and after: a
/// machine that steadily becomes slower or faster changes both equally.
pub async fn instances(scale: Scale) -> anyhow::Result<Figures> {
    let (agents, rate) = (scale.agents(18_000), scale.rate(700.0));
    let cost = async |instances| {
        let measured = paced(
            system::instances(instances),
            agents,
            rate,
            TWO_ROUNDS_OF_AUTOVACUUM,
        )
        .await;
        measured.map(|(cost, _system)| cost)
    };
    let one = cost(1).await?;
    let many = cost(MANY_INSTANCES).await?;
    let again = cost(1).await?;
    let table = Table::new(format!("instances, {agents} agents"), &COLUMNS)
        .row("1", one.figures())
        .row(MANY_INSTANCES.to_string(), many.figures())
        .row("1 again", again.figures());
    let ratio = many.postgres_us / f64::midpoint(one.postgres_us, again.postgres_us);
    let cores = many.postgres_cores();
    Ok(Figures {
        tables: vec![table],
        goals: vec![
            Goal::ratio("PostgreSQL CPU on many instances, × on one", ratio, 2.0),
            Goal::at_most("cores of PostgreSQL on many instances", cores, 0.15),
        ],
        ..Figures::default()
    })
}
