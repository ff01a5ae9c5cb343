//! The stages about the cost of a heartbeat: at a steady pace, at a low one, at saturation, on many instances.

use anyhow::Context;
use svc_testkit::transactions;

use super::{
    load::{FASTEST, HeartbeatCost, Load},
    note,
    results::{Instances, Pace, Saturate},
    sizes::{LOW_RATE, Sizes, interval},
    sql::{self, Schedule, SqlCost},
    system::{SERVICE, System, SystemKind},
};
use crate::lab::Lab;

/// The cost of `rate` heartbeats per second, and the system, whose fleet has left.
pub async fn paced(
    kind: SystemKind,
    agents: u32,
    rate: f64,
    sizes: &Sizes,
) -> anyhow::Result<(HeartbeatCost, System)> {
    let each = interval(agents, rate);
    let load = Load::of(kind, agents, each, sizes).await?;
    load.set_interval(each).await?;
    let cost = load.measure(sizes.window).await?;
    let (system, _) = load.finish().await?;
    Ok((cost, system))
}

pub async fn pace(sizes: &Sizes) -> anyhow::Result<Pace> {
    let (agents, rate) = (sizes.pace_agents, sizes.pace_rate);
    let (echo, system) = paced(SystemKind::Echo, agents, rate, sizes).await?;
    drop(system);
    let (service, mut system) = paced(SERVICE, agents, rate, sizes).await?;
    let lab = system.lab()?;
    let schedule = Schedule {
        batch: batch_size(lab).await?,
        rate: service.per_second,
        time: sizes.window,
    };
    stop_instances(lab).await?;
    let bare = sql::bare(lab, schedule).await?;
    note(&shown("bare SQL", &bare));
    let minimal = minimal(lab, schedule).await?;
    Ok(Pace {
        service,
        echo,
        sql: bare,
        minimal: Some(minimal),
    })
}

async fn minimal(lab: &Lab, schedule: Schedule) -> anyhow::Result<SqlCost> {
    let minimal = sql::minimal(lab, schedule).await?;
    note(&shown("minimal SQL", &minimal));
    Ok(minimal)
}

fn shown(name: &str, cost: &SqlCost) -> String {
    let (us, batch, rate) = (cost.postgres_us, cost.batch, cost.per_second);
    format!("{name}: {us:.1} µs at {rate:.0}/s in batches of {batch}")
}

/// The mean number of heartbeats per transaction so far, by the service's own metrics.
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

pub async fn low(sizes: &Sizes) -> anyhow::Result<HeartbeatCost> {
    Ok(paced(SERVICE, sizes.low_agents, LOW_RATE, sizes).await?.0)
}

pub async fn saturate(sizes: &Sizes) -> anyhow::Result<Saturate> {
    let agents = sizes.saturate_agents;
    let bare = Load::of(SystemKind::Echo, agents, FASTEST, sizes).await?;
    let echo = bare.measure(sizes.window).await?;
    bare.finish().await?;
    let mut load = Load::of(SERVICE, agents, FASTEST, sizes).await?;
    let service = load.measure(sizes.window).await?;
    let schedule = Schedule {
        batch: batch_size(load.system.lab()?).await?,
        rate: service.per_second,
        time: sizes.window,
    };
    load.set_interval(interval(agents, service.per_second / 2.0))
        .await?;
    let half = load.measure(sizes.window).await?;
    let (mut system, _) = load.finish().await?;
    let lab = system.lab()?;
    stop_instances(lab).await?;
    Ok(Saturate {
        service,
        echo,
        half,
        minimal: Some(minimal(lab, schedule).await?),
    })
}

/// The same fleet at the same low rate on one instance, on many, and on one again: batches become small, and the
/// periodic work of each instance is multiplied.
pub async fn instances(sizes: &Sizes) -> anyhow::Result<Instances> {
    let sizes = &Sizes {
        window: sizes.instances_window,
        ..sizes.clone()
    };
    let cost = async |instances| {
        let (agents, rate) = (sizes.instances_agents, sizes.instances_rate);
        let measured = paced(SystemKind::Service { instances }, agents, rate, sizes).await;
        measured.map(|(cost, _system)| cost)
    };
    Ok(Instances {
        instances: sizes.instances,
        one: cost(1).await?,
        many: cost(sizes.instances).await?,
        one_again: Some(cost(1).await?),
    })
}
