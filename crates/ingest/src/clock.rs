//! The database's clock as this instance knows it: the last reading of it, and the steady clock since. Everything that
//! instances must agree on is judged by it, and so is everything that is signed. The wall clock of this machine has no
//! part in it: it may be wrong, and it may be set at any time.
//!
//! A reading is wrong by half of its round trip at most, and less certain as time goes by, because the two clocks drift
//! apart. On a slow database a new reading may be worse than the last one, so the better of the two is kept. If they
//! contradict each other, the database's clock was set, or this machine was suspended, and the new one counts.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use svc_store::{ClockReading, Store, StoreError};
use tokio::time::Instant;

use crate::sync::lock;

/// How far two clocks drift apart in a second; several times what clocks do.
const DRIFT: f64 = 0.0005;

#[derive(Clone, Debug)]
pub struct DatabaseClock(Arc<Mutex<ClockReading>>);

impl DatabaseClock {
    /// Reads the clock for the first time.
    pub async fn synchronised(store: &Store) -> Result<Self, StoreError> {
        let reading = store.database_clock().await?;
        Ok(Self(Arc::new(Mutex::new(reading))))
    }

    pub fn now(&self) -> Timestamp {
        lock(&self.0).time_at(Instant::now())
    }

    /// The earliest that it may be now.
    pub fn earliest_now(&self) -> Timestamp {
        let (reading, now) = (*lock(&self.0), Instant::now());
        let time = reading.time_at(now);
        time.checked_sub(error(&reading, now)).unwrap_or(time)
    }

    /// The clock was read again.
    pub fn read(&self, new: ClockReading) {
        let mut kept = lock(&self.0);
        *kept = better(*kept, new);
    }
}

fn better(old: ClockReading, new: ClockReading) -> ClockReading {
    let error = error(&old, new.at);
    let apart = new.time.duration_since(old.time_at(new.at)).unsigned_abs();
    match new.error <= error || apart > new.error + error {
        true => new,
        false => old,
    }
}

fn error(reading: &ClockReading, now: Instant) -> Duration {
    let age = now.saturating_duration_since(reading.at);
    reading.error + age.mul_f64(DRIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_reading_counts_until_it_is_too_old_or_contradicted() {
        let start = Instant::now();
        // The database is so many milliseconds ahead of its first reading and the steady clock since.
        let reading = |seconds: i64, ahead: i64, error| ClockReading {
            time: Timestamp::from_millisecond(1_800_000_000_000 + seconds * 1000 + ahead).unwrap(),
            at: start + Duration::from_secs(seconds.cast_unsigned()),
            error: Duration::from_millis(error),
        };
        let good = reading(0, 0, 2);
        assert_eq!(
            better(good, reading(5, 50, 700)),
            good,
            "the new one is worse"
        );
        let newer = reading(10, 1, 3);
        assert_eq!(better(good, newer), newer, "the old one has aged");
        for ahead in [5000, -5000] {
            let set = reading(11, ahead, 700);
            assert_eq!(better(newer, set), set, "the clock was set");
        }
    }
}
