//! The database's clock as this instance knows it: the machine's clock plus a measured offset.
//! Everything that instances must agree on is judged by it.
//!
//! A measurement is wrong by half of its round trip at most, and less certain as time goes by, because the two
//! clocks drift apart. On a slow database a new measurement may be worse than the last one, so the better of the two
//! is kept. If they contradict each other, a clock was set, and the new one counts.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use svc_store::{ClockOffset, Store, StoreError};
use tokio::time::Instant;

use crate::sync::lock;

/// How far two clocks drift apart in a second; several times what clocks do.
const DRIFT: f64 = 0.0005;

#[derive(Clone, Debug)]
pub struct DatabaseClock(Arc<Mutex<Measured>>);

#[derive(Clone, Copy, Debug)]
struct Measured {
    clock: ClockOffset,
    at: Instant,
}

impl DatabaseClock {
    /// Measures the offset for the first time.
    pub async fn synchronised(store: &Store) -> Result<Self, StoreError> {
        let clock = store.database_clock_offset().await?;
        let at = Instant::now();
        Ok(Self(Arc::new(Mutex::new(Measured { clock, at }))))
    }

    pub fn now(&self) -> Timestamp {
        let measured = *lock(&self.0);
        let now = Timestamp::now();
        now.checked_add(measured.clock.offset).unwrap_or(now)
    }

    /// The earliest that it may be now.
    pub fn earliest_now(&self) -> Timestamp {
        let (now, error) = (self.now(), lock(&self.0).error(Instant::now()));
        now.checked_sub(error).unwrap_or(now)
    }

    /// The offset was measured again, just now.
    pub fn measured(&self, clock: ClockOffset) {
        lock(&self.0).update(clock, Instant::now());
    }
}

impl Measured {
    fn update(&mut self, clock: ClockOffset, at: Instant) {
        let error = self.error(at);
        let apart = (clock.offset - self.clock.offset).unsigned_abs();
        if clock.error <= error || apart > clock.error + error {
            *self = Self { clock, at };
        }
    }

    fn error(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.at);
        self.clock.error + age.mul_f64(DRIFT)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn clock(offset: i64, error: u64) -> ClockOffset {
        ClockOffset {
            offset: SignedDuration::from_millis(offset),
            error: Duration::from_millis(error),
        }
    }

    #[test]
    fn the_better_measurement_counts_until_it_is_too_old_or_contradicted() {
        let at = Instant::now();
        let after = |seconds| at + Duration::from_secs(seconds);
        let mut measured = Measured {
            clock: clock(100, 2),
            at,
        };
        measured.update(clock(150, 700), after(5));
        assert_eq!(measured.clock, clock(100, 2), "the new one is worse");
        measured.update(clock(101, 3), after(10));
        assert_eq!(measured.clock, clock(101, 3), "the old one has aged");
        measured.update(clock(5000, 700), after(11));
        assert_eq!(measured.clock, clock(5000, 700), "a clock was set");
    }
}
