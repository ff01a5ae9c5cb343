//! What a fleet counts: totals, errors by reason, and latencies.
//!
//! A worker counts in one [`Stats`] and sends an update to its parent twice a second. Counts are sent as
//! totals, latencies as the pairs (microseconds, count) that were recorded since the last update. Both
//! sides use the same buckets, so merging the updates of all workers gives the same histogram as recording
//! everything in one place. (Quantiles could not be merged: the p99 of two p99s is not the p99 of the whole.)

use std::{collections::BTreeMap, mem, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Two significant digits: figures from a shared machine are no more precise.
const SIGNIFICANT_DIGITS: u8 = 2;
const LONGEST_US: u64 = 3_600_000_000;
/// Reasons come from the service, which is under test: this bounds how many are kept.
const MAX_REASONS: usize = 64;

/// Totals since the start, except the first three, which describe the present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Agents with a welcomed stream.
    pub connected: u64,
    /// Agents that got an acknowledgement since the last mark.
    pub back: u64,
    /// The mark that `back` counts from.
    pub mark: u64,
    pub registered: u64,
    pub streams: u64,
    pub lost: u64,
    pub drained: u64,
    pub taken: u64,
    /// Samples not taken, because the spool was full or the loop is closed.
    pub skipped: u64,
    pub reports: u64,
    pub reports_acked: u64,
    pub acked: u64,
    pub rejected: u64,
}

/// On the wire it is the recorded latencies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Recorded", into = "Recorded")]
pub struct LatencyHistogram(Histogram<u64>);

/// (microseconds, count)
type Recorded = Vec<(u64, u64)>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// From the first sending of a sample to its acknowledgement.
    pub ack: LatencyHistogram,
    /// From the call of Register to the JWT.
    pub enrol: LatencyHistogram,
    /// From the first packet to Welcome.
    pub connect: LatencyHistogram,
    /// From the loss of a stream to the Welcome of the next.
    pub absence: LatencyHistogram,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    pub counts: Counts,
    pub latencies: Latencies,
    pub errors: BTreeMap<String, u64>,
}

/// What a worker sends to its parent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatsUpdate {
    pub stats: Stats,
    /// Of the worker process; memory without what it used before its first agent.
    pub cpu_us: u64,
    pub rss_kib: u64,
}

impl LatencyHistogram {
    pub fn record(&mut self, us: u64) {
        self.0.saturating_record(us);
    }

    pub fn record_duration(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(quantile))
    }

    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Quantiles {
    pub fn of(times: &LatencyHistogram) -> Quantiles {
        let at = |quantile| millis(times.quantile(quantile));
        Quantiles {
            count: times.count(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: millis(times.max()),
        }
    }

    /// In the order of the fields.
    pub fn figures(&self) -> [f64; 5] {
        let count = self.count as f64;
        [count, self.p50_ms, self.p99_ms, self.p999_ms, self.max_ms]
    }
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

impl From<Recorded> for LatencyHistogram {
    fn from(recorded: Recorded) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::default();
        for (us, count) in recorded {
            histogram.0.saturating_record_n(us, count);
        }
        histogram
    }
}

impl From<LatencyHistogram> for Recorded {
    fn from(histogram: LatencyHistogram) -> Recorded {
        let steps = histogram.0.iter_recorded();
        steps
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let bounded = Histogram::new_with_bounds(1, LONGEST_US, SIGNIFICANT_DIGITS);
        LatencyHistogram(bounded.unwrap_or_else(|_| unreachable!("the bounds are valid constants")))
    }
}

impl Latencies {
    pub fn add(&mut self, other: &Latencies) {
        self.ack.0 += &other.ack.0;
        self.enrol.0 += &other.enrol.0;
        self.connect.0 += &other.connect.0;
        self.absence.0 += &other.absence.0;
    }
}

impl Stats {
    pub fn count_error(&mut self, reason: &str) {
        let known = self.errors.len() < MAX_REASONS || self.errors.contains_key(reason);
        let reason = if known { reason } else { "others" };
        *self.errors.entry(reason.to_owned()).or_default() += 1;
    }

    /// The next update for the parent. It empties the histograms.
    pub fn take_update(&mut self, cpu_us: u64, rss_kib: u64) -> StatsUpdate {
        StatsUpdate {
            stats: Stats {
                counts: self.counts.clone(),
                latencies: mem::take(&mut self.latencies),
                errors: self.errors.clone(),
            },
            cpu_us,
            rss_kib,
        }
    }
}

impl Counts {
    /// The counts of several workers. The mark is the oldest one: a worker that has not seen the latest
    /// mark yet still counts from the one before.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Counts> + Clone) -> Counts {
        let mark = all.clone().map(|counts| counts.mark).min();
        let mut sum = Counts::default();
        all.for_each(|counts| sum.add(counts));
        sum.mark = mark.unwrap_or(0);
        sum
    }

    fn add(&mut self, other: &Counts) {
        self.connected += other.connected;
        self.back += other.back;
        self.registered += other.registered;
        self.streams += other.streams;
        self.lost += other.lost;
        self.drained += other.drained;
        self.taken += other.taken;
        self.skipped += other.skipped;
        self.reports += other.reports;
        self.reports_acked += other.reports_acked;
        self.acked += other.acked;
        self.rejected += other.rejected;
    }

    /// Samples that were taken and are not acknowledged yet.
    pub fn open(&self) -> u64 {
        self.taken.saturating_sub(self.acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_reach_the_parent_once_and_unchanged() {
        let mut stats = Stats::default();
        for us in [10, 20, 20, 30_000, 2_000_000] {
            stats.latencies.ack.record(us);
        }
        let sent = serde_json::to_string(&stats.take_update(0, 0)).unwrap();
        let update: StatsUpdate = serde_json::from_str(&sent).unwrap();
        let mut merged = Latencies::default();
        merged.add(&update.stats.latencies);
        assert_eq!(merged.ack.count(), 5);
        assert_eq!(merged.ack.quantile(0.5), Duration::from_micros(20));
        assert!(merged.ack.max() >= Duration::from_secs(2));
        assert_eq!(stats.latencies.ack.count(), 0, "sent twice");
    }

    #[test]
    fn the_number_of_error_reasons_is_bounded() {
        let mut stats = Stats::default();
        for number in 0..1000 {
            stats.count_error(&format!("reason {number}"));
        }
        stats.count_error("reason 1");
        assert!(stats.errors.len() <= MAX_REASONS + 1);
        assert_eq!(stats.errors.values().sum::<u64>(), 1001);
        assert_eq!(stats.errors["reason 1"], 2);
    }
}
