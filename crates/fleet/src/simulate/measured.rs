//! The model beside the runs that were measured: one cell of 18,000 agents on one machine (stage `restart`).
//!
//! Nothing here is fitted to those runs. The only figure of the machine is how fast it opens streams, which stage `storm`
//! has measured. So the model is wrong about the service as soon as it is wrong here.

use super::{
    arrival::{Arrival, DRAIN_TIMEOUT},
    cell::{Cell, Fault},
    costs::{OPENING_OF_MACHINE, Work},
    engine,
};
use crate::{
    agent::CONNECT_TIMEOUT,
    figures::{Goal, Table},
};

/// How far the model may be from a measured run. Two measured runs of one kind differ by less than 1 %.
const ERROR: f64 = 0.03;
const AGENTS: u32 = 18_000;
/// The median of so many fleets, because the last of 18,000 agents depends on chance.
const FLEETS: u64 = 9;

/// A run of stage `restart`.
#[derive(Debug)]
struct Run {
    name: &'static str,
    instances: u32,
    stopped: bool,
    /// When all instances serve again, and when all agents are back after that: measured.
    serve: f64,
    back: f64,
}

const RUNS: [Run; 3] = [
    Run {
        name: "all of 1 stopped",
        instances: 1,
        stopped: true,
        serve: 0.081,
        back: 98.7,
    },
    Run {
        name: "all of 1 killed",
        instances: 1,
        stopped: false,
        serve: 0.107,
        back: 30.2,
    },
    Run {
        name: "all of 3 stopped",
        instances: 3,
        stopped: true,
        serve: 0.387,
        back: 33.1,
    },
];

impl Run {
    /// When all agents are back after all instances serve, by the model.
    fn simulated(&self, seed: u64) -> f64 {
        let cell = Cell {
            agents: AGENTS,
            cores: Work {
                service: 2.0,
                database: 2.0,
            },
            reporting: AGENTS,
            writers: 1.0,
            // The agents share the two cores, so they wait for their own part, before the service sees them, and their
            // deadline is what ends it.
            unproven: f64::INFINITY,
            deadline: CONNECT_TIMEOUT.as_secs_f64(),
            opening: Work {
                service: OPENING_OF_MACHINE,
                ..Work::default()
            },
        };
        let (ended, arrival) = match self.stopped {
            true => (
                DRAIN_TIMEOUT,
                Arrival::Stopped {
                    instances: self.instances,
                },
            ),
            false => (0.0, Arrival::Reset),
        };
        let serves_at = ended + self.serve;
        let fault = Fault {
            serves_at,
            ..Fault::default()
        };
        let mut back: Vec<f64> = (0..FLEETS)
            .map(|fleet| engine::simulate(cell, fault, arrival, seed + fleet).all_back - serves_at)
            .collect();
        back.sort_by(f64::total_cmp);
        back[back.len() / 2]
    }
}

/// The runs beside the model, with a goal for each.
pub fn compare(seed: u64) -> (Table, Vec<Goal>) {
    let columns = [
        "measured: all back after s",
        "simulated",
        "simulated ÷ measured",
    ];
    let mut table = Table::new("18000 agents", &columns);
    let mut goals = Vec::new();
    for run in &RUNS {
        let simulated = run.simulated(seed);
        let ratio = simulated / run.back;
        table = table.row(run.name, [run.back, simulated, ratio]);
        let name = format!("{}: the model's error", run.name);
        goals.push(Goal::at_most(name, (ratio - 1.0).abs(), ERROR));
    }
    (table, goals)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use anyhow::Context;

    use super::*;
    use crate::bench::results::{Results, Stage};

    /// A figure of the stored results.
    pub fn stored(stage: Stage, row: &str, column: usize) -> anyhow::Result<f64> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results/latest.json");
        let results = Results::read(&path)?;
        let measured = results.stages.get(&stage).context("no such stage")?;
        let mut rows = measured.figures.tables.iter().flat_map(|table| &table.rows);
        let found = rows.find(|(name, _)| name == row).context("no such row")?;
        found.1.get(column).copied().context("no such column")
    }

    #[test]
    fn the_runs_are_the_stored_ones() -> anyhow::Result<()> {
        for run in &RUNS {
            let serve = stored(Stage::Restart, run.name, 0)?;
            let back = stored(Stage::Restart, run.name, 1)?;
            assert!((run.serve - serve).abs() < 0.001, "{}: {serve}", run.name);
            assert!((run.back - back).abs() < 0.05, "{}: {back}", run.name);
        }
        Ok(())
    }

    #[test]
    fn the_model_agrees_with_the_measured_runs_within_its_error() {
        let (table, goals) = compare(1);
        assert!(goals.iter().all(Goal::met), "{table}");
    }
}
