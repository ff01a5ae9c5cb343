//! The inbound budget of a connection, in bytes, refilled at a steady rate.
//!
//! A self-made certificate costs nothing, so a client could have the budgets of a thousand agents. An unproven
//! connection therefore has an allowance that is enough to become proven. What it sends beyond that is read slowly, and
//! all such connections share one rate ([`Strangers`]). A newcomer stays within its allowance and never waits for them.

use std::{sync::Mutex, time::Duration};

use svc_common::sync::lock;
use tokio::time::Instant;

/// Twice the fastest agent: two reports of 256 KiB a second.
const BYTES_PER_SECOND: i64 = 1024 * 1024;
const BURST: i64 = 4 * BYTES_PER_SECOND;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// A handshake, a Register or Hello of the largest size, and twenty frames.
const ALLOWANCE: i64 = 128 * 1024;
/// How much an unproven connection may send at a time when its allowance is spent, and at which rate: an eighth of an agent's.
const STEP: i64 = 16 * 1024;
const UNPROVEN_BYTES_PER_SECOND: i64 = BYTES_PER_SECOND / 8;
/// The rate of all unproven connections together, beyond their allowances: that of one agent.
const STRANGERS_BYTES_PER_SECOND: i64 = BYTES_PER_SECOND;
/// Connections that end while they wait leave their turns unused. This bounds how long others wait for those.
const LONGEST_TURN: Duration = Duration::from_secs(30);

/// Bytes that may still be read; negative while the connection is in debt. The clock is read only when the
/// budget is used up, so a client that stays within it costs nothing.
#[derive(Debug)]
pub(super) struct Budget {
    left: i64,
    filled: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: ALLOWANCE,
            filled: now,
        }
    }

    pub(super) fn spend(&mut self, bytes: i64) {
        self.left -= bytes;
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left <= 0
    }

    /// Adds what a proven connection has gained since the last time.
    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled).as_micros();
        let gained = i64::try_from(elapsed)
            .unwrap_or(i64::MAX)
            .saturating_mul(BYTES_PER_SECOND)
            / 1_000_000;
        self.left = self.left.saturating_add(gained).min(BURST);
        self.filled = now;
    }

    /// How long a connection in debt must wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.is_spent()
            .then(|| time(-self.left, BYTES_PER_SECOND).max(SHORTEST_PAUSE))
    }

    /// Gives an unproven connection its next step. Returns how long it must wait before it uses it.
    pub(super) fn step(&mut self, strangers: &Strangers, now: Instant) -> Duration {
        let bytes = STEP - self.left;
        self.left = STEP;
        strangers
            .turn(bytes, now)
            .max(time(bytes, UNPROVEN_BYTES_PER_SECOND))
    }
}

/// The rate of all unproven connections beyond their allowances: each gets its bytes after those that asked before it.
#[derive(Debug)]
pub(super) struct Strangers(Mutex<Instant>);

impl Strangers {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// How long a connection waits for its turn to read so many bytes.
    fn turn(&self, bytes: i64, now: Instant) -> Duration {
        let mut last = lock(&self.0);
        let turn = (*last).max(now) + time(bytes, STRANGERS_BYTES_PER_SECOND);
        *last = turn.min(now + LONGEST_TURN);
        *last - now
    }
}

/// How long so many bytes take.
fn time(bytes: i64, per_second: i64) -> Duration {
    Duration::from_micros(bytes.unsigned_abs() * 1_000_000 / per_second.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_says_how_long_to_wait_and_refills_up_to_the_burst() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert_eq!(budget.wait(), None);
        budget.left -= ALLOWANCE + BYTES_PER_SECOND;
        assert_eq!(budget.wait(), Some(Duration::from_secs(1)));
        budget.refill(start + Duration::from_secs(2));
        assert_eq!((budget.left, budget.wait()), (BYTES_PER_SECOND, None));
        budget.refill(start + Duration::from_hours(1000));
        assert_eq!(budget.left, BURST);
    }

    #[test]
    fn strangers_have_a_small_rate_each_and_wait_for_each_other() {
        let (now, strangers) = (Instant::now(), Strangers::new());
        let spent = || {
            let mut budget = Budget::new(now);
            budget.left = 0;
            budget.step(&strangers, now)
        };
        let alone = Duration::from_millis(125);
        assert_eq!(spent(), alone, "an eighth of an agent's rate");
        let last = (1..64).map(|_| spent()).max();
        assert!(last.is_some_and(|wait| wait.abs_diff(Duration::from_secs(1)) < alone / 2));
        let longest = (0..100_000).map(|_| spent()).max();
        assert_eq!(longest, Some(LONGEST_TURN));
    }
}
