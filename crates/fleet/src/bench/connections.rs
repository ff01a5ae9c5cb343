//! The stages about many connections at the same time: a crowd that registers, and a storm.

use std::time::Duration;

use super::{
    load::{self, Load, TIMEOUT},
    sizes::{Scale, interval},
    system::{SERVICE, System, SystemKind},
};
use crate::{
    figures::{Figures, Goal, Table},
    fleet::Totals,
    plan::Plan,
    stats::Quantiles,
};

/// More registrations per second than the service can do, without all agents arriving at once.
const ENROL_ARRIVALS: f64 = 1_000.0;

pub async fn enrol(scale: Scale) -> anyhow::Result<Figures> {
    let system = System::start(SERVICE).await?;
    let agents = scale.agents(10_000);
    let plan = Plan {
        ramp: interval(agents, ENROL_ARRIVALS),
        ..system.plan(agents).await?
    };
    let before = system.usage().await?;
    let (took, totals) = load::enrol(plan).await?;
    let after = system.usage().await?;
    let each = |us: u64| us as f64 / f64::from(agents);
    let per_second = f64::from(agents) / took.as_secs_f64();
    let service_us = each(after.services.cpu_us - before.services.cpu_us);
    let postgres_us = each(after.postgres.cpu_us - before.postgres.cpu_us);
    let p99_ms = Quantiles::of(&totals.latencies.enrol).p99_ms;
    let second_tries = totals.errors.values().sum::<u64>();
    let columns = [
        "registrations/s",
        "PostgreSQL µs",
        "service µs",
        "p99 ms",
        "second tries",
    ];
    let figures = [
        per_second,
        postgres_us,
        service_us,
        p99_ms,
        second_tries as f64,
    ];
    Ok(Figures {
        tables: vec![Table::new("agents", &columns).row(agents.to_string(), figures)],
        goals: vec![
            Goal::at_least("registrations/s", per_second, 700.0),
            Goal::never("second tries", second_tries),
        ],
        ..Figures::default()
    })
}

/// All connections are cut at the same time.
pub async fn storm(kind: SystemKind, agents: u32, each: Duration) -> anyhow::Result<Figures> {
    let load = Load::start(kind, agents, each).await?;
    let before = load.system.usage().await?;
    load.fleet.order(|orders| orders.cuts += 1)?;
    let mark = load.fleet.mark()?;
    let again = |totals: &Totals| totals.counts.streams >= 2 * u64::from(agents);
    let connected = load
        .fleet
        .until("all agents are connected again", TIMEOUT, again)
        .await?;
    let back = connected + load.fleet.all_back(mark, TIMEOUT).await?;
    let after = load.system.usage().await?;
    load.finish().await?;
    let columns = [
        "all connected after s",
        "acknowledged after s",
        "service µs per connection",
        "statements",
    ];
    let service = after.services.cpu_us - before.services.cpu_us;
    let figures = [
        connected.as_secs_f64(),
        back.as_secs_f64(),
        service as f64 / f64::from(agents),
        (after.statements - before.statements) as f64,
    ];
    Ok(Figures {
        tables: vec![Table::new("agents", &columns).row(agents.to_string(), figures)],
        goals: vec![Goal::at_most("all back, s", back.as_secs_f64(), 60.0)],
        ..Figures::default()
    })
}
