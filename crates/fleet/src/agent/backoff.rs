//! When to try again: the service's hint goes first, full jitter otherwise.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const GROWTH: f64 = 1.6;
const LONGEST: Duration = Duration::from_secs(120);
/// A hint is a floor: those who were given the same one still spread.
const HINT_SPREAD: f64 = 0.25;

#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u8,
}

impl Backoff {
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// `chance` is 0 to 1.
    pub fn wait(&mut self, hint: Option<Duration>, chance: f64) -> Duration {
        let most = FIRST.mul_f64(GROWTH.powi(i32::from(self.failures)));
        self.failures = (self.failures + 1).min(20);
        match hint {
            Some(hint) => hint.mul_f64(1.0 + HINT_SPREAD * chance),
            None => most.min(LONGEST).mul_f64(chance),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_are_bounded_and_hints_are_heeded(failures in 0_usize..200, chance in 0.0..1.0) {
            let mut backoff = Backoff::default();
            for _ in 0..failures {
                prop_assert!(backoff.wait(None, chance) <= LONGEST);
            }
            let hint = Duration::from_secs(7);
            let wait = backoff.wait(Some(hint), chance);
            prop_assert!(wait >= hint && wait <= hint * 2);
            backoff.succeeded();
            prop_assert!(backoff.wait(None, chance) <= FIRST);
        }
    }
}
