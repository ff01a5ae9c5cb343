//! The statistics of a whole fleet at one moment, and how they are printed.

use std::{
    collections::BTreeMap,
    io::{Write, stderr},
    time::Duration,
};

use crate::stats::{Counts, Latencies, LatencyHistogram};

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
        let counts = &self.counts;
        format!(
            "{:.0?}: {} connected, {} acknowledged, {} open, ack {}, errors {}",
            self.age,
            counts.connected,
            counts.acked,
            counts.open(),
            format_quantiles(&self.window.ack),
            format_errors(&self.errors)
        )
    }
}

/// Progress goes to standard error, the result to standard output. A run does not fail because its progress cannot be shown.
pub fn note(text: &str) {
    let _ = writeln!(stderr(), "  {text}");
}

/// p50, p99 and p999.
fn format_quantiles(times: &LatencyHistogram) -> String {
    if times.count() == 0 {
        return "–".into();
    }
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| format_time(times.quantile(quantile)));
    format!("p50 {p50} p99 {p99} p999 {p999}")
}

fn format_time(time: Duration) -> String {
    match time.as_micros() {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        us => format!("{:.2} s", us as f64 / 1e6),
    }
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
