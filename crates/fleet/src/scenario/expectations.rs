//! The expectations of a scenario, and the check of each.

use std::{fmt, time::Duration};

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;
use svc_testkit::AuditReport;

use crate::fleet::{Totals, format_errors, format_time};

/// For a start beside other work: less than forever, which is how long a site did not start.
const GENEROUS_START: Duration = Duration::from_secs(60);

/// An expectation that is left out is not checked. The books are always checked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expectations {
    /// From the end of the ramp until all agents have a stream.
    #[serde(with = "compact::optional")]
    pub connected_within: Option<Duration>,
    /// From a fault until all agents have a stream and a new acknowledgement.
    #[serde(with = "compact::optional")]
    pub back_within: Option<Duration>,
    /// Acknowledgements after all agents were connected.
    #[serde(with = "compact::optional")]
    pub ack_p99: Option<Duration>,
    /// The same, of the slowest.
    #[serde(with = "compact::optional")]
    pub ack_slowest: Option<Duration>,
    /// From Register to the JWT.
    #[serde(with = "compact::optional")]
    pub enrol_p99: Option<Duration>,
    /// How often agents may go offline.
    pub offline_at_most: Option<u64>,
    /// Every agent keeps its first stream.
    pub streams_kept: bool,
    /// No agent counted an error.
    pub no_errors: bool,
    /// Nothing is acknowledged while the database is down.
    pub silent_while_away: bool,
    /// Every clone is refused, and none is welcomed.
    pub copies_refused: bool,
    /// true: some samples must be rejected; false: none may be.
    pub rejections: Option<bool>,
    /// From SIGTERM to the exit of an instance.
    #[serde(with = "compact::optional")]
    pub exit_within: Option<Duration>,
    /// From the start of all instances until all of them serve.
    #[serde(with = "compact::optional")]
    pub start_within: Option<Duration>,
    /// The least number of acknowledged samples per agent.
    pub backfilled: Option<u64>,
    /// SQL statements per acknowledged sample, counting everything that the instances execute.
    pub statements_at_most: Option<f64>,
    /// The largest memory of an instance, as a multiple of what docs/sizing.md has for its agents.
    pub memory_at_most: Option<f64>,
}

/// What happened while a scenario ran.
#[derive(Debug, Default)]
pub struct Observations {
    pub agents: u64,
    pub connected: Duration,
    pub slowest_back: Duration,
    pub slowest_exit: Duration,
    pub slowest_start: Duration,
    pub acked_while_down: u64,
    pub copies: u64,
    /// Samples of history that were filled in, and are readable after each replacement of instances.
    pub history: u64,
    pub offline: u64,
    /// SQL statements after all agents were connected.
    pub statements: u64,
    /// The most memory that an instance has taken, in bytes, and what is documented for its agents.
    pub memory: u64,
    pub documented_memory: u64,
    pub totals: Totals,
    pub books: AuditReport,
}

#[derive(Debug)]
pub struct Check {
    held: bool,
    name: &'static str,
    found: String,
}

impl Check {
    pub fn held(&self) -> bool {
        self.held
    }

    fn new(name: &'static str, held: bool, found: impl fmt::Display) -> Check {
        let found = found.to_string();
        Check { held, name, found }
    }

    fn within(name: &'static str, found: Duration, most: Duration) -> Check {
        let text = format!("{}, at most {}", format_time(found), format_time(most));
        Check::new(name, found <= most, text)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.held { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {}: {}", self.name, self.found)
    }
}

impl Expectations {
    /// Without the expectations that a slow machine could fail.
    pub fn without_times(self) -> Expectations {
        Expectations {
            connected_within: None,
            back_within: None,
            ack_p99: None,
            ack_slowest: None,
            enrol_p99: None,
            exit_within: None,
            start_within: self.start_within.and(Some(GENEROUS_START)),
            ..self
        }
    }

    pub fn checks(&self, observed: &Observations) -> Vec<Check> {
        let mut checks = vec![books(&observed.books)];
        checks.extend(self.times(observed));
        checks.extend(self.counts(observed));
        checks.extend(self.behaviour(observed));
        checks
    }

    fn times(&self, observed: &Observations) -> impl Iterator<Item = Check> {
        let totals = &observed.totals;
        let ack = totals.window.ack.quantile(0.99);
        let enrol = totals.latencies.enrol.quantile(0.99);
        let times = [
            ("all connected", observed.connected, self.connected_within),
            (
                "all back and acknowledged",
                observed.slowest_back,
                self.back_within,
            ),
            ("acknowledgement p99", ack, self.ack_p99),
            (
                "slowest acknowledgement",
                totals.window.ack.max(),
                self.ack_slowest,
            ),
            ("Register to JWT p99", enrol, self.enrol_p99),
            ("SIGTERM to exit", observed.slowest_exit, self.exit_within),
            ("all serve again", observed.slowest_start, self.start_within),
        ];
        let asked = times.into_iter();
        asked.filter_map(|(name, found, most)| Some(Check::within(name, found, most?)))
    }

    fn counts(&self, observed: &Observations) -> Vec<Check> {
        let counts = &observed.totals.counts;
        let mut checks = Vec::new();
        if let Some(most) = self.offline_at_most {
            let found = format!("{} times, at most {most}", observed.offline);
            checks.push(Check::new("went offline", observed.offline <= most, found));
        }
        if let Some(some) = self.rejections {
            let held = (counts.rejected > 0) == some;
            checks.push(Check::new("samples rejected", held, counts.rejected));
        }
        if let Some(each) = self.backfilled {
            let wanted = each * observed.agents;
            let found = format!("{} of at least {wanted}", counts.acked);
            checks.push(Check::new("backfilled", counts.acked >= wanted, found));
        }
        if let Some(most) = self.statements_at_most {
            let each = observed.statements as f64 / counts.acked.max(1) as f64;
            let found = format!("{each:.2}, at most {most}");
            checks.push(Check::new("statements per sample", each <= most, found));
        }
        if let Some(most) = self.memory_at_most {
            let (found, documented) = (observed.memory, observed.documented_memory);
            let held = found > 0 && found as f64 <= documented as f64 * most;
            let text = format!(
                "{} MiB, at most {most} times {} MiB",
                found >> 20,
                documented >> 20
            );
            checks.push(Check::new("memory of an instance", held, text));
        }
        checks
    }

    fn behaviour(&self, observed: &Observations) -> Vec<Check> {
        let (counts, errors) = (&observed.totals.counts, &observed.totals.errors);
        let mut checks = Vec::new();
        if self.streams_kept {
            let held = counts.streams == observed.agents;
            let found = format!("{} streams", counts.streams);
            checks.push(Check::new("every stream kept", held, found));
        }
        if self.no_errors {
            let found = format_errors(errors);
            checks.push(Check::new("no errors", errors.is_empty(), found));
        }
        if self.silent_while_away {
            let acked = observed.acked_while_down;
            let name = "acknowledged while the database was down";
            checks.push(Check::new(name, acked == 0, acked));
        }
        if self.copies_refused {
            let (refused, welcomed) = (counts.copies_refused, counts.copies_welcomed);
            let held = observed.copies > 0 && refused == observed.copies && welcomed == 0;
            let found = format!("{refused} of {}, {welcomed} welcomed", observed.copies);
            checks.push(Check::new("copies refused", held, found));
        }
        checks
    }
}

fn books(books: &AuditReport) -> Check {
    let tables = books.tables.unwrap_or_default();
    let found = format!(
        "{} taken, {} acknowledged, {} rejected; {} missing, {} stored twice, {} not in the books, {} gaps, {} broken promises",
        books.taken,
        books.acked,
        books.rejected,
        tables.missing,
        tables.twice,
        tables.unbooked,
        tables.gaps,
        books.broken
    );
    let held = books.balance() && books.acked > 0 && books.open == 0 && books.tables.is_some();
    Check::new("the books balance", held, found)
}

#[cfg(test)]
pub mod tests;
