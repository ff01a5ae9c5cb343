//! `svc-fleet scenario`: something happens to a fleet on a system of its own, and goals must hold.
//!
//! The audit of the books is part of every scenario.

use std::{
    io::{Write, stdout},
    time::Duration,
};

use clap::ValueEnum;
use tokio::time::sleep;

use super::{
    connections::storm,
    load::{COLUMNS, Load},
    restart::{Ending, GRACES, restarts},
    system::SystemKind,
};
use crate::{
    figures::{Figures, Goal, Table},
    lab::{Settings, instances_for},
    run::duration,
};

/// The longest wait with `--brief`.
const BRIEF_WAIT: Duration = Duration::from_secs(3);
/// Until the agents report evenly, before something happens to them.
const SETTLE_TIME: Duration = Duration::from_secs(15);
const STEADY_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A fleet reports to two instances without faults
    Steady,
    /// All connections are cut at the same time, and all agents reconnect at once
    Storm,
    /// The only instance is stopped and started again, then killed and started again
    Restart,
    /// All of three instances are stopped at once and started again, then killed and started again
    RestartAll,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs {
    /// What happens
    #[arg(value_enum)]
    scenario: Scenario,
    /// Number of virtual agents
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: u32,
    /// Time between two reports of an agent; default: 5 s, and 1 s with --brief
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Shorten every wait and check no times, to see only whether it works
    #[arg(long)]
    brief: bool,
}

/// Returns whether all goals were met.
pub async fn run(args: ScenarioArgs) -> anyhow::Result<bool> {
    let default = Duration::from_secs(if args.brief { 1 } else { 5 });
    let each = args.interval.unwrap_or(default);
    let shortened = |time: Duration| {
        if args.brief {
            time.min(BRIEF_WAIT)
        } else {
            time
        }
    };
    let least = match args.scenario {
        Scenario::Restart => 1,
        Scenario::Steady | Scenario::Storm => 2,
        Scenario::RestartAll => 3,
    };
    let site = SystemKind::Service(Settings {
        instances: instances_for(args.agents).max(least),
        interval: each,
        durable: false,
    });
    let mut figures = match args.scenario {
        Scenario::Steady => steady(site, args.agents, each, shortened(STEADY_TIME)).await?,
        Scenario::Storm => storm(site, args.agents, each).await?,
        Scenario::Restart | Scenario::RestartAll => {
            let rounds = [(Ending::Stop, SETTLE_TIME), (Ending::Kill, GRACES)];
            let rounds = rounds.map(|(ending, watch)| (ending, shortened(watch)));
            restarts(site, args.agents, each, &rounds).await?
        }
    };
    if args.brief {
        figures.goals.retain_mut(Goal::widen);
    }
    for table in &figures.tables {
        writeln!(stdout(), "{table}")?;
    }
    for goal in &figures.goals {
        let verdict = if goal.met() { "pass" } else { "FAIL" };
        writeln!(stdout(), "{verdict}  {goal}")?;
    }
    Ok(figures.goals.iter().all(Goal::met))
}

/// Nothing happens.
async fn steady(
    site: SystemKind,
    agents: u32,
    each: Duration,
    time: Duration,
) -> anyhow::Result<Figures> {
    let mut load = Load::start(site, agents, each).await?;
    sleep(each).await;
    let cost = load.measure(time).await?;
    let totals = load.fleet.totals();
    let offline = load.system.lab()?.times_offline().await?;
    load.finish().await?;
    let lost = totals.counts.streams.abs_diff(agents.into());
    Ok(Figures {
        tables: vec![Table::new("agents", &COLUMNS).row(agents.to_string(), cost.figures())],
        goals: vec![
            Goal::at_most("acknowledgement p99, ms", cost.ack.p99_ms, 1_000.0),
            Goal::never("went offline", offline),
            Goal::never("streams lost", lost),
            Goal::never("errors", totals.errors.values().sum()),
            Goal::never("samples rejected", totals.counts.rejected),
        ],
        ..Figures::default()
    })
}
