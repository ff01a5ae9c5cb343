//! How long to wait before the next attempt: the service's hint goes first;
//! without one, full jitter up to a bound that grows from failure to failure.

use std::time::Duration;

use rand::RngExt;

const FACTOR: f64 = 1.6;

/// The wait's upper bound: `first`, then 1.6 times as long each time, up to `most`.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            failures: 0,
        }
    }

    /// Counts a failure, and says how long to wait. A hint is kept, and up to a tenth
    /// is added so that those who got the same one do not come at once; but one that
    /// is next to nothing does not turn a refusal into a busy loop.
    pub fn next(&mut self, hint: Option<Duration>) -> Duration {
        let random = rand::rng().random_range(0.0..1.0);
        let bound = self.bound();
        self.failures = self.failures.saturating_add(1);
        match hint {
            Some(hint) if hint >= self.first => hint.mul_f64(1.0 + random / 10.0),
            Some(hint) => hint + bound.mul_f64(random),
            None => bound.mul_f64(random),
        }
    }

    /// All is well: the next failure is the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    fn bound(&self) -> Duration {
        let factor = FACTOR.powi(self.failures.min(64).cast_signed());
        let seconds = self.first.as_secs_f64() * factor;
        Duration::from_secs_f64(seconds.min(self.most.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(120);

    proptest! {
        #[test]
        fn waits_stay_below_a_bound_that_grows_and_ends(failures in 0_u32..200) {
            let mut backoff = Backoff { failures, ..Backoff::new(FIRST, MOST) };
            let bound = FIRST.mul_f64(FACTOR.powi(failures.min(64).cast_signed())).min(MOST);
            prop_assert_eq!(backoff.bound(), bound);
            prop_assert!(backoff.next(None) <= bound);
        }

        #[test]
        fn a_hint_goes_first_whatever_failed_before(failures in 0_u32..200, hint in 1_000_u64..1_000_000) {
            let mut backoff = Backoff { failures, ..Backoff::new(FIRST, MOST) };
            let hint = Duration::from_millis(hint);
            let wait = backoff.next(Some(hint));
            prop_assert!(wait >= hint && wait <= hint.mul_f64(1.101));
        }
    }

    #[test]
    fn a_hint_of_nothing_is_no_busy_loop() {
        let mut backoff = Backoff::new(FIRST, MOST);
        let total: Duration = (0..30).map(|_| backoff.next(Some(Duration::ZERO))).sum();
        assert!(total > Duration::from_secs(60), "{total:?}");
    }
}
