//! What a fleet counts: totals, errors by reason, and how long things took.
//!
//! A worker counts in one `Tally` and tells its parent twice a second: totals as they stand, times
//! since it last told. Times travel as (microseconds, count) pairs, so merging them loses nothing.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Two digits are what a figure from a shared machine is good for.
const DIGITS: u8 = 2;
const LONGEST_US: u64 = 3_600_000_000;
/// Reasons come from the service, which is the thing under test: their number is bounded here.
const MOST_REASONS: usize = 64;

/// Totals since the start, except the first three, which are how things are now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Agents with a stream that was welcomed.
    pub connected: u64,
    /// Agents that were acknowledged something since the last mark.
    pub back: u64,
    /// The mark that `back` counts from.
    pub mark: u64,
    pub registered: u64,
    pub streams: u64,
    pub lost: u64,
    pub drained: u64,
    pub taken: u64,
    /// Ticks at which a full spool, or a closed loop, took no sample.
    pub held: u64,
    pub reports: u64,
    pub reports_acked: u64,
    pub acked: u64,
    pub rejected: u64,
    pub copies_refused: u64,
    pub copies_welcomed: u64,
    pub handshakes: u64,
}

#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// What is timed.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// From the first sending of a sample to its acknowledgement.
    pub ack: Times,
    /// From the call of Register to the JWT.
    pub enrol: Times,
    /// From the first packet to Welcome.
    pub connect: Times,
    /// From the loss of a stream to the Welcome of the next.
    pub absence: Times,
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub counts: Counts,
    pub clocks: Clocks,
    pub errors: BTreeMap<String, u64>,
}

/// Times as they travel.
pub type Pairs = Vec<(u64, u64)>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    pub counts: Counts,
    pub errors: BTreeMap<String, u64>,
    pub ack: Pairs,
    pub enrol: Pairs,
    pub connect: Pairs,
    pub absence: Pairs,
    /// Of the worker itself; memory without what it took before its first agent.
    pub cpu_us: u64,
    pub rss_kib: u64,
}

impl Times {
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

    pub fn add(&mut self, pairs: &Pairs) {
        for (us, count) in pairs {
            self.0.saturating_record_n(*us, *count);
        }
    }

    /// What was recorded since the last time, for the parent.
    fn take(&mut self) -> Pairs {
        let recorded = self.0.iter_recorded();
        let pairs = recorded.map(|step| (step.value_iterated_to(), step.count_at_value()));
        let pairs = pairs.collect();
        self.0.reset();
        pairs
    }
}

impl Default for Times {
    fn default() -> Self {
        let bounded = Histogram::new_with_bounds(1, LONGEST_US, DIGITS);
        Times(bounded.unwrap_or_else(|_| unreachable!("the bounds are constants that fit")))
    }
}

impl Clocks {
    pub fn add(&mut self, told: &Told) {
        self.ack.add(&told.ack);
        self.enrol.add(&told.enrol);
        self.connect.add(&told.connect);
        self.absence.add(&told.absence);
    }
}

impl Tally {
    pub fn error(&mut self, reason: &str) {
        let known = self.errors.len() < MOST_REASONS || self.errors.contains_key(reason);
        let reason = if known { reason } else { "others" };
        *self.errors.entry(reason.to_owned()).or_default() += 1;
    }

    /// What a worker tells its parent; the times begin anew.
    pub fn tell(&mut self, (cpu_us, rss_kib): (u64, u64)) -> Told {
        Told {
            counts: self.counts.clone(),
            errors: self.errors.clone(),
            ack: self.clocks.ack.take(),
            enrol: self.clocks.enrol.take(),
            connect: self.clocks.connect.take(),
            absence: self.clocks.absence.take(),
            cpu_us,
            rss_kib,
        }
    }
}

impl Counts {
    /// Several workers' together. Their marks are the same or nearly: the oldest counts.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
        let mut sum = Counts::default();
        let mut mark: Option<u64> = None;
        for one in all {
            mark = Some(mark.map_or(one.mark, |mark| mark.min(one.mark)));
            sum.add(one);
        }
        sum.mark = mark.unwrap_or(0);
        sum
    }

    fn add(&mut self, one: &Counts) {
        let Counts {
            connected,
            back,
            mark: _,
            registered,
            streams,
            lost,
            drained,
            taken,
            held,
            ..
        } = one;
        self.connected += connected;
        self.back += back;
        self.registered += registered;
        self.streams += streams;
        self.lost += lost;
        self.drained += drained;
        self.taken += taken;
        self.held += held;
        self.reports += one.reports;
        self.reports_acked += one.reports_acked;
        self.acked += one.acked;
        self.rejected += one.rejected;
        self.copies_refused += one.copies_refused;
        self.copies_welcomed += one.copies_welcomed;
        self.handshakes += one.handshakes;
    }

    /// Samples that were taken and are not acknowledged.
    pub fn open(&self) -> u64 {
        self.taken.saturating_sub(self.acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_to_the_parent() {
        let mut tally = Tally::default();
        for us in [10, 20, 20, 30_000, 2_000_000] {
            tally.clocks.ack.record(us);
        }
        let told = tally.tell((0, 0));
        let mut merged = Clocks::default();
        merged.add(&told);
        assert_eq!(merged.ack.count(), 5);
        assert_eq!(merged.ack.quantile(0.5), Duration::from_micros(20));
        assert!(merged.ack.max() >= Duration::from_secs(2));
        assert_eq!(tally.tell((0, 0)).ack, [], "each is told once");
    }

    #[test]
    fn reasons_are_bounded_whatever_the_service_says() {
        let mut tally = Tally::default();
        for number in 0..1000 {
            tally.error(&format!("reason {number}"));
        }
        tally.error("reason 1");
        assert!(tally.errors.len() <= MOST_REASONS + 1);
        assert_eq!(tally.errors.values().sum::<u64>(), 1001);
        assert_eq!(tally.errors["reason 1"], 2);
    }
}
