//! The statistics of a whole fleet at one moment, and how they are printed.

use std::{
    collections::BTreeMap,
    io::{Write, stderr},
    time::Duration,
};

use crate::stats::{Counts, Latencies, Quantiles};

#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub counts: Counts,
    pub errors: BTreeMap<String, u64>,
    /// Since the start, and since the window was opened.
    pub latencies: Latencies,
    pub window: Latencies,
    /// Of the workers; memory without what they used before their first agent.
    pub cpu_us: u64,
    pub rss_kib: u64,
    pub age: Duration,
}

impl Totals {
    /// One line of progress.
    pub fn line(&self) -> String {
        let (counts, ack) = (&self.counts, Quantiles::of(&self.window.ack));
        format!(
            "{:.0?}: {} connected, {} acknowledged, {} open, ack p50 {:.1} ms p99 {:.1} ms, errors {}",
            self.age,
            counts.connected,
            counts.acked,
            counts.open(),
            ack.p50_ms,
            ack.p99_ms,
            format_errors(&self.errors)
        )
    }
}

/// Progress goes to standard error, the result to standard output. A run does not fail because its progress cannot be shown.
pub fn note(text: &str) {
    let _ = writeln!(stderr(), "  {text}");
}

pub fn format_errors(errors: &BTreeMap<String, u64>) -> String {
    if errors.is_empty() {
        return "none".into();
    }
    let errors = errors
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"));
    errors.collect::<Vec<_>>().join(", ")
}
