//! The climb: a table, a plot, and why it ended.

use std::fmt::Write;

use super::{plot, table};
use crate::bench::{climb::Step, results::Results};

pub fn climb(results: &Results) -> String {
    let Some(climb) = &results.climb else {
        return String::new();
    };
    let rows = climb.steps.iter().map(|step| {
        format!(
            "| {} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {} | {} | {} |",
            step.agents,
            step.instances,
            step.per_second,
            step.service_cores,
            step.postgres_cores,
            step.fleet_cores,
            step.p99_ms,
            step.service_mib,
            step.fleet_mib,
            step.available_mib
        )
    });
    let mut out = table(
        "| agents | instances | heartbeats/s | cores of services | of PostgreSQL | of the fleet | ack p99 ms | services MiB | fleet MiB | MiB available |\n|---|---|---|---|---|---|---|---|---|---|",
        rows,
    );
    let cores = |step: &Step| step.service_cores + step.postgres_cores;
    let points = climb.steps.iter().map(|step| (step.agents, cores(step)));
    let plot = plot("cores of services and PostgreSQL", points);
    let _ = write!(
        out,
        "\nEach agent reports every {} s. The climb ended: {}. {} samples were acknowledged, and the audit found all of them; agents went offline {} times.\n\n```text\n{plot}```\n",
        climb.interval, climb.stopped, climb.acked, climb.offline
    );
    out
}
