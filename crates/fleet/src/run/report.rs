//! The report of a run, as Markdown and JSON.

use std::{
    collections::BTreeMap,
    fs,
    io::{Write, stdout},
    path::Path,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use svc_harness::AuditReport;

use super::service::ServiceCost;
use crate::{
    figures::Table,
    fleet::{Totals, format_errors},
    procfs::Machine,
    stats::{Counts, Quantiles},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: Machine,
    pub agents: u32,
    pub seconds: f64,
    pub counts: Counts,
    pub errors: BTreeMap<String, u64>,
    pub ack: Quantiles,
    pub connect: Quantiles,
    pub enrol: Quantiles,
    pub absence: Quantiles,
    pub cost: AgentCost,
    /// Present if `--http` was given.
    pub service: Option<ServiceCost>,
    pub books: AuditReport,
    /// Why the fleet did not settle, if it did not.
    pub unsettled: Option<String>,
}

/// The cost of a virtual agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentCost {
    pub kib: f64,
    pub cpu_us_per_report: f64,
    pub cores: f64,
}

impl Report {
    pub fn new(
        agents: u32,
        totals: &Totals,
        books: AuditReport,
        fault: Option<anyhow::Error>,
    ) -> Report {
        let (seconds, cpu) = (totals.age.as_secs_f64(), totals.cpu_us as f64);
        Report {
            machine: Machine::here(),
            agents,
            seconds,
            counts: totals.counts.clone(),
            errors: totals.errors.clone(),
            ack: Quantiles::of(&totals.latencies.ack),
            connect: Quantiles::of(&totals.latencies.connect),
            enrol: Quantiles::of(&totals.latencies.enrol),
            absence: Quantiles::of(&totals.latencies.absence),
            cost: AgentCost {
                kib: totals.rss_kib as f64 / f64::from(agents.max(1)),
                cpu_us_per_report: cpu / totals.counts.reports_acked.max(1) as f64,
                cores: cpu / 1e6 / seconds.max(0.001),
            },
            service: None,
            books,
            unsettled: fault.map(|fault| format!("{fault:#}")),
        }
    }

    /// Whether the books balance and at least one sample was acknowledged.
    pub fn passed(&self) -> bool {
        self.books.balance() && self.books.acked > 0 && self.unsettled.is_none()
    }

    /// As JSON.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    pub fn print(&self) -> anyhow::Result<()> {
        Ok(stdout().write_all(self.markdown().as_bytes())?)
    }

    fn markdown(&self) -> String {
        let counts = &self.counts;
        let verdict = if self.passed() {
            "the books balance"
        } else {
            "THE BOOKS DO NOT BALANCE"
        };
        let columns = ["count", "p50 ms", "p99 ms", "p999 ms", "max ms"];
        let times = Table::new("", &columns)
            .row("acknowledgement", self.ack.figures())
            .row("connect to Welcome", self.connect.figures())
            .row("Register to JWT", self.enrol.figures())
            .row("absence", self.absence.figures());
        let mut lines = vec![
            format!(
                "# {} virtual agents, {:.0} s: {verdict}",
                self.agents, self.seconds
            ),
            String::new(),
            times.to_string(),
            format!(
                "{} streams, {} lost, {} drained; {} samples taken, {} acknowledged, {} rejected, {} never acknowledged.",
                counts.streams,
                counts.lost,
                counts.drained,
                self.books.taken,
                self.books.acked,
                self.books.rejected,
                self.books.open
            ),
            self.tables(),
            format!(
                "Each virtual agent: {:.1} KiB, {:.1} µs of CPU per report; {:.2} cores for all.",
                self.cost.kib, self.cost.cpu_us_per_report, self.cost.cores
            ),
            format!("Errors: {}.", format_errors(&self.errors)),
        ];
        lines.extend(self.service.iter().map(service));
        lines.extend(
            self.unsettled
                .iter()
                .map(|fault| format!("Did not settle: {fault}")),
        );
        lines.push(String::new());
        lines.join("\n")
    }

    fn tables(&self) -> String {
        match self.books.tables {
            None => "No database was given: only the ledgers were checked.".into(),
            Some(tables) => format!(
                "In PostgreSQL: {} stored, {} missing, {} stored twice, {} not in the books, {} gaps.",
                tables.stored, tables.missing, tables.twice, tables.unbooked, tables.gaps
            ),
        }
    }
}

fn service(cost: &ServiceCost) -> String {
    format!(
        "The service: {:.1} µs of CPU and {:.3} transactions per report, {:.1} KiB per agent.",
        cost.cpu_us_per_report, cost.transactions_per_report, cost.kib_per_agent
    )
}
