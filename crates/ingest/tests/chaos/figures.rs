//! What was measured, and how it is printed.

use std::{fmt, time::Duration};

/// Sorted.
#[derive(Debug)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort();
        Self(latencies)
    }

    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * q).ceil() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| self.quantile(q).as_secs_f64() * 1000.0;
        let (p50, p99, max) = (ms(0.5), ms(0.99), ms(1.0));
        let count = self.0.len();
        write!(
            f,
            "p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms (of {count})"
        )
    }
}
