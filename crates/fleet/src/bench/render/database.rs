//! The tables about PostgreSQL: many instances, history on disk, pages of history, one hour of a large fleet.

use super::{super::results::Results, table};
use crate::bench::{history::Cost, load::HeartbeatCost};

pub fn instances(results: &Results) -> String {
    let row = |instances: usize, cost: &HeartbeatCost| {
        format!(
            "| {instances} | {} | {:.0} | {:.3} | {:.1} | {:.0} | {:.3} | {:.1} |",
            cost.agents,
            cost.per_second,
            cost.postgres_cores(),
            cost.postgres_us,
            cost.wal_bytes,
            cost.statements,
            cost.ack.p99_ms
        )
    };
    let rows = results.instances.iter().flat_map(|measured| {
        let rows = [
            row(1, &measured.one),
            row(measured.instances, &measured.many),
        ];
        let again = measured.one_again.map(|cost| row(1, &cost));
        rows.into_iter().chain(again)
    });
    table(
        "| instances | agents | heartbeats/s | cores of PostgreSQL | PostgreSQL µs | WAL bytes | statements | ack p99 ms |\n|---|---|---|---|---|---|---|---|",
        rows,
    )
}

pub fn history(results: &Results) -> String {
    let Some(history) = &results.history else {
        return String::new();
    };
    let row = |name: &str, cost: &Cost| {
        format!(
            "| {name} | {:.1} | {:.1} | {:.0} | {:.0} |",
            cost.postgres_us, cost.service_us, cost.wal_bytes, cost.disk_bytes
        )
    };
    let mut rows = vec![
        row("stored, in batches of 1,000", &history.stored),
        row("compacted and rolled up", &history.compacted),
    ];
    if let Some(all) = &history.all_vitals {
        rows.push(row("stored, with all optional vitals", &all.stored));
        rows.push(row("compacted and rolled up", &all.compacted));
    }
    let head = format!(
        "| each of {} samples of {} hosts | PostgreSQL µs | service µs | WAL bytes | bytes on disk |\n|---|---|---|---|---|",
        history.samples, history.hosts
    );
    let if_measured = |ms: Option<f64>| ms.map_or(String::new(), |ms| format!("{ms:.1}"));
    let pages = history.pages.iter().map(|page| {
        format!(
            "| {} | {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} |",
            page.span,
            page.rows,
            if_measured(page.arrays_ms),
            if_measured(page.one_array_ms),
            page.all_columns_ms,
            page.one_vital_ms,
            page.view_ms,
            page.hourly_ms
        )
    });
    let pages = table(
        "| page of a host's history | samples | all columns as arrays, ms | one vital | all columns as rows | one vital | all from the view | hourly rollups |\n|---|---|---|---|---|---|---|---|",
        pages,
    );
    format!("{}\n{pages}", table(&head, rows.into_iter()))
}

pub fn hour(results: &Results) -> String {
    let rows = results.hour.iter().map(|hour| {
        format!(
            "| {} | {} | {:.0} | {:.1} | {:.1} | {} | {} | {} | {} | {} |",
            hour.hosts,
            hour.samples,
            hour.seconds,
            hour.cost.postgres_us,
            hour.cost.service_us,
            hour.postgres_mib,
            hour.service_mib,
            hour.blocks,
            hour.blocks_read,
            hour.temporary_mib
        )
    });
    table(
        "| compaction of an hour: hosts | samples | seconds | PostgreSQL µs a sample | service µs | PostgreSQL MiB besides shared memory | service MiB | pages of the hour | pages read | temporary files MiB |\n|---|---|---|---|---|---|---|---|---|---|",
        rows,
    )
}
