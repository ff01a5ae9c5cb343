//! `svc-fleet simulate`: what happens to ten million agents in fifty cells, by a simulation of discrete events.
//!
//! It starts nothing and connects to nothing. `costs` are measured, the agents' waits are the contract's, and
//! `measured` holds the model against runs of the real service. docs/scale.md has its table and what it leaves out.

mod arrival;
mod cell;
mod costs;
mod engine;
mod measured;
mod scenarios;

use std::{
    io::{Write, stdout},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use self::{
    engine::Outcome,
    scenarios::{Scenario, scenarios},
};
use crate::figures::{Goal, Table};

const COLUMNS: [&str; 11] = [
    "cells",
    "agents each",
    "half back after s",
    "all back after s",
    "at the latest after s",
    "attempts failed, per agent",
    "peak attempts/s",
    "peak openings/s",
    "peak cores of services",
    "of PostgreSQL",
    "shown offline",
];

/// The service's own limits bound what it does at once. PostgreSQL has none, so it must never be full.
const DATABASE_PART: f64 = 0.8;

#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Number of cells
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    cells: u32,
    /// Agents of each cell
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    agents: u32,
    /// The same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print a row for each cell, not only the worst figures of all
    #[arg(long)]
    each: bool,
}

/// Returns whether all goals were met.
pub fn run(args: &SimulateArgs) -> anyhow::Result<bool> {
    let (compared, mut goals) = measured::compare(args.seed);
    let mut table = Table::new("what happens", &COLUMNS);
    for scenario in scenarios(args.cells, args.agents) {
        let outcomes = of_cells(&scenario, args.seed);
        if args.each {
            for (number, outcome) in (1..).zip(&outcomes) {
                let name = format!("{}, cell {number}", scenario.name);
                table = table.row(name, figures(&scenario, 1, outcome));
            }
        }
        let worst = outcomes.into_iter().fold(Outcome::default(), worse);
        goals.extend(limits(&scenario, &worst));
        table = table.row(scenario.name, figures(&scenario, scenario.cells, &worst));
    }
    let mut out = stdout().lock();
    writeln!(out, "{compared}\n{table}")?;
    let missed: Vec<&Goal> = goals.iter().filter(|goal| !goal.met()).collect();
    for goal in &missed {
        writeln!(out, "FAIL {goal}")?;
    }
    if missed.is_empty() {
        writeln!(out, "All {} limits hold.", goals.len())?;
    }
    Ok(missed.is_empty())
}

/// Every cell of the scenario, each with a seed of its own, on all processors.
fn of_cells(scenario: &Scenario, seed: u64) -> Vec<Outcome> {
    let next = AtomicU32::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= scenario.cells {
                return done;
            }
            let seed = seed.wrapping_mul(1_000_003) + u64::from(number);
            let outcome = engine::simulate(scenario.cell, scenario.fault, scenario.arrival, seed);
            done.push((number, outcome));
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut outcomes = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().filter_map(|worker| worker.join().ok());
        joined.flatten().collect::<Vec<_>>()
    });
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The worst of every figure; counts are added.
fn worse(one: Outcome, other: Outcome) -> Outcome {
    Outcome {
        agents: one.agents.max(other.agents),
        half_back: one.half_back.max(other.half_back),
        all_back: one.all_back.max(other.all_back),
        attempts: one.attempts + other.attempts,
        failed: one.failed + other.failed,
        peak_attempts: one.peak_attempts.max(other.peak_attempts),
        peak_openings: one.peak_openings.max(other.peak_openings),
        peak: costs::Work {
            service: one.peak.service.max(other.peak.service),
            database: one.peak.database.max(other.peak.database),
        },
        offline: one.offline + other.offline,
    }
}

fn figures(scenario: &Scenario, cells: u32, outcome: &Outcome) -> [f64; 11] {
    let agents = f64::from(cells) * f64::from(outcome.agents);
    [
        f64::from(cells),
        f64::from(outcome.agents),
        outcome.half_back - scenario.since,
        outcome.all_back - scenario.since,
        scenario.limit,
        outcome.failed as f64 / agents,
        outcome.peak_attempts,
        outcome.peak_openings,
        outcome.peak.service,
        outcome.peak.database,
        outcome.offline as f64,
    ]
}

fn limits(scenario: &Scenario, worst: &Outcome) -> [Goal; 3] {
    let Scenario { name, cell, .. } = scenario;
    let back = worst.all_back - scenario.since;
    let database = worst.peak.database / cell.cores.database;
    [
        Goal::at_most(format!("{name}: all back, s"), back, scenario.limit),
        Goal::at_most(
            format!("{name}: part of PostgreSQL's cores"),
            database,
            DATABASE_PART,
        ),
        Goal::never(format!("{name}: went offline"), worst.offline),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fifth of the agents and of the cores gives the same times.
    fn worst(of: &str, change: impl Fn(&mut Scenario)) -> (Scenario, Outcome) {
        let mut all = scenarios(3, 40_000);
        let found = all.iter_mut().find(|one| one.name.starts_with(of)).unwrap();
        change(found);
        let outcome = of_cells(found, 1)
            .into_iter()
            .fold(Outcome::default(), worse);
        (found.clone(), outcome)
    }

    #[test]
    fn a_cell_that_was_lost_is_back_within_the_grace() {
        let (scenario, outcome) = worst("cell lost", |_| ());
        assert!(limits(&scenario, &outcome).iter().all(Goal::met));
    }

    #[test]
    fn a_limit_fails_when_the_cell_has_too_few_cores() {
        let (scenario, outcome) = worst("zone lost: cells with their primary elsewhere", |one| {
            one.cell.cores.service = one.cell.steady().service * 1.2;
        });
        let [back, .., offline] = limits(&scenario, &outcome);
        assert!(!back.met() && !offline.met(), "{outcome:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_figures_on_any_number_of_threads() {
        let [one, two] = [(); 2].map(|()| worst("storm", |_| ()));
        let shown = |(scenario, outcome)| figures(&scenario, 3, &outcome);
        assert_eq!(shown(one), shown(two));
    }
}
