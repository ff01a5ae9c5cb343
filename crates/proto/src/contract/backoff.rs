//! How long a client waits before it retries.

use std::time::Duration;

/// The growth of the upper bound from one failure to the next.
const FACTOR: f64 = 1.6;
/// The largest part of a hint that is added to it.
const HINT_JITTER: f64 = 0.1;

/// A client caps a longer `google.rpc.RetryInfo` to this, so that no answer keeps it
/// away for good.
pub const LONGEST_HINT: Duration = Duration::from_hours(24);

/// The range of the upper bound of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffBounds {
    /// The bound after the first failure.
    pub first: Duration,
    /// The bound grows no further than this.
    pub most: Duration,
}

impl BackoffBounds {
    /// What the protocol asks of every client.
    pub const STANDARD: Self = Self {
        first: Duration::from_secs(1),
        most: Duration::from_mins(2),
    };
}

/// The number of failures in a row. It is one byte, because a fleet simulator holds one
/// for each of its agents, and it takes the random number as a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u8,
}

impl Backoff {
    /// Counts a failure and returns the wait before the next attempt. `random` is
    /// uniform in `0.0..1.0`.
    ///
    /// Without a hint the wait has full jitter: it is uniform between zero and a bound
    /// that grows by 1.6 with each failure. A hint of the service is a minimum: up to a
    /// tenth is added, so that clients with the same hint do not return at the same
    /// moment. A hint shorter than `bounds.first` gets the full jitter added instead,
    /// because a service that answers "retry in 0 s" would otherwise cause a busy loop.
    pub fn next(&mut self, bounds: BackoffBounds, hint: Option<Duration>, random: f64) -> Duration {
        let jitter = self.bound(bounds).mul_f64(random);
        self.failures = self.failures.saturating_add(1);
        match hint.map(|hint| hint.min(LONGEST_HINT)) {
            Some(hint) if hint >= bounds.first => hint.mul_f64(1.0 + HINT_JITTER * random),
            Some(hint) => hint + jitter,
            None => jitter,
        }
    }

    /// After a success the next failure counts as the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The product is capped as a floating-point number: 1.6 to the power of 255 is
    /// finite there, but exceeds any `Duration`.
    fn bound(self, bounds: BackoffBounds) -> Duration {
        let seconds = bounds.first.as_secs_f64() * FACTOR.powi(self.failures.into());
        Duration::from_secs_f64(seconds.min(bounds.most.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: BackoffBounds = BackoffBounds::STANDARD;

    fn after(failures: usize) -> Backoff {
        let mut backoff = Backoff::default();
        for _ in 0..failures {
            backoff.next(BOUNDS, None, 0.5);
        }
        backoff
    }

    proptest! {
        #[test]
        fn the_bound_grows_by_the_factor_up_to_its_end(failures in 0_usize..300, random in 0.0..1.0) {
            let bound = BOUNDS.first.mul_f64(FACTOR.powi(failures.min(30) as i32)).min(BOUNDS.most);
            let mut backoff = after(failures);
            prop_assert_eq!(backoff.bound(BOUNDS), bound);
            prop_assert_eq!(backoff.next(BOUNDS, None, random), bound.mul_f64(random));
        }

        #[test]
        fn a_hint_is_a_minimum_whatever_failed_before(
            failures in 0_usize..300, hint in 1_000_u64..1_000_000, random in 0.0..1.0,
        ) {
            let hint = Duration::from_millis(hint);
            let wait = after(failures).next(BOUNDS, Some(hint), random);
            prop_assert!(wait >= hint && wait <= hint.mul_f64(1.101));
        }

        #[test]
        fn no_hint_keeps_a_client_away_for_much_longer_than_a_day(seconds: u64, random in 0.0..1.0) {
            let wait = after(0).next(BOUNDS, Some(Duration::from_secs(seconds)), random);
            prop_assert!(wait <= LONGEST_HINT.mul_f64(1.101));
        }
    }

    #[test]
    fn hints_of_zero_cause_no_busy_loop() {
        let mut backoff = Backoff::default();
        let wait = |_| backoff.next(BOUNDS, Some(Duration::ZERO), 0.5);
        let total: Duration = (0..30).map(wait).sum();
        assert!(total > Duration::from_mins(10), "{total:?}");
    }

    #[test]
    fn a_success_starts_again_at_the_first_bound() {
        let mut backoff = after(20);
        backoff.reset();
        assert_eq!(backoff.bound(BOUNDS), BOUNDS.first);
        assert_eq!(size_of::<Backoff>(), 1);
    }
}
