//! What must hold, and whether it did: a line each.

use std::{fmt, time::Duration};

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;

use crate::{
    fleet::{Totals, reasons, shown},
    run::audit::Books,
};

/// What is left out is not asked for. The books are always.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Must {
    /// From the end of the ramp until all agents have a stream.
    #[serde(with = "compact::optional")]
    pub connected_within: Option<Duration>,
    /// From a fault until all agents have a stream and were acknowledged something new.
    #[serde(with = "compact::optional")]
    pub back_within: Option<Duration>,
    /// Acknowledgements after all were connected.
    #[serde(with = "compact::optional")]
    pub ack_p99: Option<Duration>,
    /// From Register to the JWT.
    #[serde(with = "compact::optional")]
    pub enrol_p99: Option<Duration>,
    /// How often agents may have gone offline.
    pub offline_at_most: Option<u64>,
    /// Every agent keeps its first stream.
    pub streams_kept: bool,
    /// No agent met an error.
    pub no_errors: bool,
    /// While the database is away nothing is acknowledged.
    pub silent_while_away: bool,
    /// Every copy is refused, and none is welcomed.
    pub copies_refused: bool,
    /// Whether samples are rejected: some must be, or none may.
    pub rejections: Option<bool>,
    /// From SIGTERM to the end of an instance.
    #[serde(with = "compact::optional")]
    pub exit_within: Option<Duration>,
    /// Samples that are acknowledged after a backfill, for each agent.
    pub backfilled: Option<u64>,
    /// SQL statements a sample that was acknowledged, of everything the instances do.
    pub statements_at_most: Option<f64>,
}

/// What was seen.
#[derive(Debug)]
pub struct Seen {
    pub agents: u64,
    pub connected: Duration,
    pub slowest_back: Duration,
    pub slowest_exit: Duration,
    pub acked_while_away: u64,
    pub copies: u64,
    pub offline: u64,
    /// That PostgreSQL was asked after all were connected.
    pub statements: u64,
    pub totals: Totals,
    pub books: Books,
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
        let text = format!("{}, at most {}", shown(found), shown(most));
        Check::new(name, found <= most, text)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.held { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {}: {}", self.name, self.found)
    }
}

impl Must {
    /// What is left when nothing may fail for being slow.
    pub fn without_times(self) -> Must {
        Must {
            connected_within: None,
            back_within: None,
            ack_p99: None,
            enrol_p99: None,
            exit_within: None,
            ..self
        }
    }

    /// How many lines it asks for, beside the books.
    pub fn lines(&self) -> usize {
        let times = [
            self.connected_within,
            self.back_within,
            self.ack_p99,
            self.enrol_p99,
            self.exit_within,
        ];
        let flags = [
            self.streams_kept,
            self.no_errors,
            self.silent_while_away,
            self.copies_refused,
            self.offline_at_most.is_some(),
            self.rejections.is_some(),
            self.backfilled.is_some(),
            self.statements_at_most.is_some(),
        ];
        times.iter().flatten().count() + flags.iter().filter(|flag| **flag).count()
    }

    pub fn checks(&self, seen: &Seen) -> Vec<Check> {
        let mut checks = vec![books(&seen.books)];
        checks.extend(self.times(seen));
        checks.extend(self.counts(seen));
        checks.extend(self.behaviour(seen));
        checks
    }

    fn times(&self, seen: &Seen) -> impl Iterator<Item = Check> {
        let clocks = &seen.totals;
        let ack = clocks.window.ack.quantile(0.99);
        let enrol = clocks.clocks.enrol.quantile(0.99);
        let times = [
            ("all connected", seen.connected, self.connected_within),
            (
                "all back and acknowledged",
                seen.slowest_back,
                self.back_within,
            ),
            ("acknowledgement p99", ack, self.ack_p99),
            ("Register to JWT p99", enrol, self.enrol_p99),
            ("SIGTERM to exit", seen.slowest_exit, self.exit_within),
        ];
        let asked = times.into_iter();
        asked.filter_map(|(name, found, most)| Some(Check::within(name, found, most?)))
    }

    fn counts(&self, seen: &Seen) -> Vec<Check> {
        let counts = &seen.totals.counts;
        let mut checks = Vec::new();
        if let Some(most) = self.offline_at_most {
            let found = format!("{} times, at most {most}", seen.offline);
            checks.push(Check::new("went offline", seen.offline <= most, found));
        }
        if let Some(some) = self.rejections {
            let held = (counts.rejected > 0) == some;
            checks.push(Check::new("samples rejected", held, counts.rejected));
        }
        if let Some(each) = self.backfilled {
            let wanted = each * seen.agents;
            let found = format!("{} of at least {wanted}", counts.acked);
            checks.push(Check::new("backfilled", counts.acked >= wanted, found));
        }
        if let Some(most) = self.statements_at_most {
            let each = seen.statements as f64 / counts.acked.max(1) as f64;
            let found = format!("{each:.2}, at most {most}");
            checks.push(Check::new("statements a sample", each <= most, found));
        }
        checks
    }

    fn behaviour(&self, seen: &Seen) -> Vec<Check> {
        let (counts, errors) = (&seen.totals.counts, &seen.totals.errors);
        let kept = counts.streams == seen.agents;
        let silent = seen.acked_while_away == 0;
        let refused = counts.copies_refused == seen.copies && counts.copies_welcomed == 0;
        let copies = format!(
            "{} of {}, {} welcomed",
            counts.copies_refused, seen.copies, counts.copies_welcomed
        );
        let all = [
            (
                self.streams_kept,
                "every stream kept",
                kept,
                format!("{} streams", counts.streams),
            ),
            (
                self.no_errors,
                "no errors",
                errors.is_empty(),
                reasons(errors),
            ),
            (
                self.silent_while_away,
                "acknowledged while the database was away",
                silent,
                seen.acked_while_away.to_string(),
            ),
            (
                self.copies_refused,
                "copies refused",
                refused && seen.copies > 0,
                copies,
            ),
        ];
        let asked = all.into_iter().filter(|(asked, ..)| *asked);
        asked
            .map(|(_, name, held, found)| Check::new(name, held, found))
            .collect()
    }
}

fn books(books: &Books) -> Check {
    let tables = books.tables.unwrap_or_default();
    let found = format!(
        "{} taken, {} acknowledged, {} rejected; {} missing, {} twice, {} unbooked, {} gaps, {} promises broken",
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
mod tests;
