//! The pace of reports: no faster than the service reads them, with a pause after each
//! full one.

use std::time::Duration;

use svc_proto::contract::limits::{REPORT_BURST, REPORT_INTERVAL};
use tokio::time::Instant;

use crate::wire::MAX_REPORT_SAMPLES;

/// Half of what the service reads without delay, so that its flow control rarely acts.
const BURST: u32 = REPORT_BURST / 2;
/// A report of this many samples or more counts as full: more samples wait behind it.
const FULL: usize = MAX_REPORT_SAMPLES / 2;

#[derive(Debug)]
pub(super) struct Pace {
    backfill: Duration,
    /// The time at which everything sent so far would have been sent at the steady pace.
    steady_at: Instant,
    pause_until: Option<Instant>,
}

impl Pace {
    pub(super) fn new(backfill: Duration, now: Instant) -> Self {
        Self {
            backfill,
            steady_at: now,
            pause_until: None,
        }
    }

    /// Accounts for a report of `samples` that was sent at `now`.
    pub(super) fn sent(&mut self, samples: usize, now: Instant) {
        self.steady_at = self.steady_at.max(now) + REPORT_INTERVAL;
        let ahead = self.steady_at.checked_sub(REPORT_INTERVAL * BURST);
        let pause = match samples >= FULL {
            true => Some(now + self.backfill.mul_f64(rand::random_range(0.5..1.5))),
            false => None,
        };
        self.pause_until = pause.max(ahead.filter(|ahead| *ahead > now));
    }

    /// When the next report may be sent; `None`: now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.pause_until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn small_reports_are_sent_at_once_until_the_burst_is_used_up() {
        let began = Instant::now();
        let mut pace = Pace::new(SECOND, began);
        let (mut now, mut sent) = (began, 0);
        while now < began + 60 * SECOND {
            match pace.until(now) {
                Some(until) => now = until,
                None => {
                    pace.sent(1, now);
                    sent += 1;
                }
            }
        }
        assert!((120..=131).contains(&sent), "{sent}");
    }

    #[test]
    fn a_week_of_samples_is_sent_within_minutes_but_not_at_once() {
        let began = Instant::now();
        let mut pace = Pace::new(SECOND, began);
        let mut now = began;
        for _ in 0..7 * 24 * 120 / MAX_REPORT_SAMPLES {
            now = pace.until(now).unwrap_or(now);
            pace.sent(MAX_REPORT_SAMPLES, now);
        }
        let took = now - began;
        assert!(took > 15 * SECOND && took < 120 * SECOND, "{took:?}");
    }
}
