//! Measured times, with their quantiles.

use std::{fmt, time::Duration};

#[derive(Debug)]
pub struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    pub fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort();
        Self { sorted: latencies }
    }

    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        let index = (last as f64 * q).ceil() as usize;
        self.sorted.get(index).copied().unwrap_or_default()
    }

    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| self.quantile(q).as_secs_f64() * 1000.0;
        let (p50, p99, max) = (ms(0.5), ms(0.99), ms(1.0));
        let count = self.count();
        write!(
            f,
            "p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms (of {count})"
        )
    }
}
