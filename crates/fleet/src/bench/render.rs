//! Results as Markdown: tables and plots, and their place in the documentation.
//!
//! Every figure between the markers of the document comes from the stored results. Stages that did not run
//! leave nothing there.

mod climb;
mod database;

use std::{fmt::Write, fs, path::PathBuf};

use anyhow::Context;

use super::{
    load::HeartbeatCost,
    results::Results,
    sql::SqlCost,
    thresholds::{self, Threshold},
};

const BEGIN: &str = "<!-- results -->";
const END: &str = "<!-- /results -->";
const PLOT_WIDTH: f64 = 40.0;

#[derive(Clone, Debug, clap::Args)]
pub struct RenderArgs {
    /// The stored results
    #[arg(long, value_name = "FILE", default_value = "bench/results/latest.json")]
    results: PathBuf,
    /// The document; the part between the markers is replaced
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.md")]
    into: PathBuf,
}

pub fn render(args: &RenderArgs) -> anyhow::Result<()> {
    let results = Results::read(&args.results)?;
    anyhow::ensure!(
        results.is_real(),
        "these results are of a debug build or of divided fleets: run `make bench`"
    );
    let text = text(&results, &thresholds::check(&results));
    // A missing document starts with the markers only.
    let document = fs::read_to_string(&args.into)
        .unwrap_or_else(|_| format!("# Benchmarks\n\n{BEGIN}\n{END}\n"));
    let document = replaced(&document, &text)?;
    fs::write(&args.into, document).with_context(|| args.into.display().to_string())
}

fn replaced(document: &str, text: &str) -> anyhow::Result<String> {
    let (head, rest) = document
        .split_once(BEGIN)
        .with_context(|| format!("no {BEGIN}"))?;
    let (_, tail) = rest.split_once(END).with_context(|| format!("no {END}"))?;
    Ok(format!("{head}{BEGIN}\n{text}\n{END}{tail}"))
}

/// All results as Markdown.
pub fn text(results: &Results, thresholds: &[Threshold]) -> String {
    let kind = match (results.is_real(), results.quick) {
        (false, _) => "Trial run (its figures are meaningless)",
        (true, true) => "Quick run",
        (true, false) => "Full run",
    };
    let mut out = format!(
        "{kind} of {} on {}.\n",
        results.at.strftime("%Y-%m-%d"),
        results.machine
    );
    if !results.postgres.is_empty() {
        let _ = write!(out, "\n{}.\n", results.postgres);
    }
    let parts = [
        thresholds_table(thresholds),
        memory(results),
        costs(results),
        database::instances(results),
        database::history(results),
        database::hour(results),
        connections(results),
        growth(results),
        climb::climb(results),
    ];
    for part in parts.iter().filter(|part| !part.is_empty()) {
        out.push('\n');
        out.push_str(part);
    }
    out
}

fn thresholds_table(thresholds: &[Threshold]) -> String {
    let rows = thresholds.iter().map(|threshold| {
        let sign = if threshold.at_least { "≥" } else { "≤" };
        let met = if threshold.met() { "met" } else { "**missed**" };
        format!(
            "| {} | {:.2} | {sign} {:.2} | {met} |",
            threshold.name, threshold.measured, threshold.required
        )
    });
    table(
        "| threshold | measured | required | |\n|---|---|---|---|",
        rows,
    )
}

fn memory(results: &Results) -> String {
    let rows = results.rss.iter().map(|rss| {
        format!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} |",
            rss.agents,
            rss.service.idle_kib,
            rss.service.used_kib,
            rss.echo.idle_kib,
            rss.echo.used_kib
        )
    });
    table(
        "| agents | service idle, KiB per agent | after traffic | bare echo idle | after traffic |\n|---|---|---|---|---|",
        rows,
    )
}

fn costs(results: &Results) -> String {
    let mut rows = Vec::new();
    if let Some(pace) = &results.pace {
        rows.push(cost("at pace", &pace.service));
        rows.push(cost("bare echo at pace", &pace.echo));
        rows.push(loop_cost("bare SQL", &pace.sql));
        rows.extend(pace.minimal.map(|cost| loop_cost("minimal SQL", &cost)));
    }
    rows.extend(results.low.iter().map(|low| cost("at 333/s", low)));
    if let Some(saturate) = &results.saturate {
        rows.push(cost("saturated", &saturate.service));
        rows.push(cost("bare echo saturated", &saturate.echo));
        let minimal = saturate.minimal.iter();
        rows.extend(minimal.map(|cost| loop_cost("minimal SQL at that rate", cost)));
        rows.push(cost("at half of saturation", &saturate.half));
    }
    let fifty = results.fifty.as_ref();
    rows.extend(fifty.map(|fifty| cost(&format!("on {} instances", fifty.instances), &fifty.cost)));
    table(
        "| load | agents | heartbeats/s | service µs | PostgreSQL µs | WAL bytes | statements | ack p50 ms | p99 ms |\n|---|---|---|---|---|---|---|---|---|",
        rows.into_iter(),
    )
}

fn loop_cost(name: &str, cost: &SqlCost) -> String {
    format!(
        "| {name}, batches of {} | | {:.0} | | {:.1} | {:.0} | | | |",
        cost.batch, cost.per_second, cost.postgres_us, cost.wal_bytes
    )
}

fn cost(name: &str, cost: &HeartbeatCost) -> String {
    format!(
        "| {name} | {} | {:.0} | {:.1} | {:.1} | {:.0} | {:.3} | {:.1} | {:.1} |",
        cost.agents,
        cost.per_second,
        cost.service_us,
        cost.postgres_us,
        cost.wal_bytes,
        cost.statements,
        cost.ack.p50_ms,
        cost.ack.p99_ms
    )
}

fn connections(results: &Results) -> String {
    let mut rows = Vec::new();
    rows.extend(results.enrol.iter().map(|enrol| {
        let second_tries = enrol.second_tries.map(|count| format!(", {count} second tries"));
        format!(
            "| registrations per second, {} agents | {:.0} (each {:.0} µs of service and {:.0} µs of PostgreSQL, p99 {:.0} ms{}) |",
            enrol.agents,
            enrol.per_second,
            enrol.service_us,
            enrol.postgres_us,
            enrol.times.p99_ms,
            second_tries.unwrap_or_default()
        )
    }));
    rows.extend(results.handshake.iter().map(|handshake| {
        format!(
            "| mTLS handshakes per second | {:.0} (each {:.0} µs of service) |",
            handshake.per_second, handshake.service_us
        )
    }));
    rows.extend(results.storm.iter().map(|storm| {
        format!(
            "| {} connections cut at once | all connected after {:.1} s, acknowledged after {:.1} s (each {:.0} µs of service; {} statements) |",
            storm.agents, storm.connected_seconds, storm.back_seconds, storm.service_us, storm.statements
        )
    }));
    rows.extend(results.kill.iter().map(|kill| {
        format!(
            "| an instance with {} agents killed | all back on the other instance and acknowledged after {:.1} s, disconnected for at most {:.1} s, at most {} PostgreSQL connections |",
            kill.agents, kill.back_seconds, kill.absence.max_ms / 1000.0, kill.most_connections
        )
    }));
    rows.extend(results.restart.iter().map(|restart| {
        format!(
            "| all of {} instances with {} agents killed and started again, then stopped and started again | all serve after {:.1} s and {:.1} s, all agents back and acknowledged {:.1} s and {:.1} s later; {} went offline |",
            restart.instances,
            restart.agents,
            restart.killed_up_seconds,
            restart.stopped_up_seconds,
            restart.killed_back_seconds,
            restart.stopped_back_seconds,
            restart.offline
        )
    }));
    table("| event | measured |\n|---|---|", rows.into_iter())
}

/// A table and plots; flat is good. The fifty thousand agents report at another pace than the others.
fn growth(results: &Results) -> String {
    let fifty = results.fifty.iter().map(|fifty| &fifty.cost);
    let points: Vec<&HeartbeatCost> = results.growth.iter().chain(fifty).collect();
    if results.growth.is_empty() {
        return String::new();
    }
    let rows = points.iter().map(|point| {
        format!(
            "| {} | {:.0} | {:.1} | {:.1} | {:.0} | {:.3} | {:.1} | {:.1} |",
            point.agents,
            point.per_second,
            point.service_us,
            point.postgres_us,
            point.wal_bytes,
            point.statements,
            point.ack.p99_ms,
            point.kib_per_agent
        )
    });
    let mut out = table(
        "| agents | heartbeats/s | service µs | PostgreSQL µs | WAL bytes | statements | ack p99 ms | KiB per agent |\n|---|---|---|---|---|---|---|---|",
        rows,
    );
    let of = |value: fn(&HeartbeatCost) -> f64| {
        points.iter().map(move |cost| (cost.agents, value(cost)))
    };
    let plots = [
        plot("service CPU per heartbeat, µs", of(|cost| cost.service_us)),
        plot(
            "PostgreSQL CPU per heartbeat, µs",
            of(|cost| cost.postgres_us),
        ),
        plot(
            "memory per connected agent, KiB",
            of(|cost| cost.kib_per_agent),
        ),
    ];
    let _ = write!(out, "\n```text\n{}```\n", plots.join("\n"));
    out
}

fn plot(title: &str, points: impl Iterator<Item = (u32, f64)>) -> String {
    let points: Vec<(u32, f64)> = points.collect();
    let largest = points.iter().map(|(_, value)| *value).fold(0.001, f64::max);
    let mut out = format!("{title}\n");
    for (agents, value) in points {
        let bar = "█".repeat((value / largest * PLOT_WIDTH).round() as usize);
        let _ = writeln!(out, "{agents:>8} {bar} {value:.2}");
    }
    out
}

fn table(head: &str, rows: impl Iterator<Item = String>) -> String {
    let rows: Vec<String> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("{head}\n{}\n", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_between_the_markers_is_replaced() {
        let document = format!("# Head\nwords\n{BEGIN}\nold\n{END}\nmore words\n");
        let once = replaced(&document, "new").unwrap();
        assert_eq!(
            once,
            format!("# Head\nwords\n{BEGIN}\nnew\n{END}\nmore words\n")
        );
        assert_eq!(replaced(&once, "new").unwrap(), once);
        assert!(replaced("no markers", "new").is_err());
    }

    #[test]
    fn a_stage_that_did_not_run_is_not_rendered() {
        let results = Results::new(false, 1);
        let text = text(&results, &[]);
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
