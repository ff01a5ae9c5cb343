//! Rate limits with a burst, for one bucket or for one bucket a key.

use std::{collections::HashMap, hash::Hash, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

/// How many keys a table remembers. A key is dropped once its bucket is full again. If so many keys are in use at
/// once, the table starts over and all have their bursts again: refusing the others would let a client with many keys
/// lock them out.
const KEYS: usize = 100_000;

/// One event per `every`, and up to `burst` at once. A bucket is a single point in time: when it will be full
/// again.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    every: Duration,
    burst: u32,
}

impl Rate {
    pub const fn new(every: Duration, burst: u32) -> Self {
        Self { every, burst }
    }

    /// Takes one event, or returns how long to wait for it.
    pub fn take(self, full_at: &mut Instant, now: Instant) -> Result<(), Duration> {
        let next = (*full_at).max(now) + self.every;
        let empty_at = now + self.every * self.burst;
        if next > empty_at {
            return Err(next - empty_at);
        }
        *full_at = next;
        Ok(())
    }

    /// Takes `count` events, even if that makes a debt, and returns how long it takes to repay.
    pub fn charge(self, full_at: &mut Instant, now: Instant, count: u32) -> Duration {
        *full_at = (*full_at).max(now) + self.every * count;
        self.debt(*full_at, now)
    }

    fn debt(self, full_at: Instant, now: Instant) -> Duration {
        full_at.saturating_duration_since(now + self.every * self.burst)
    }
}

/// A bucket for each key, in a table that cannot grow without bound.
#[derive(Debug)]
pub struct Keyed<K> {
    rate: Rate,
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Hash + Eq> Keyed<K> {
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            full_at: Mutex::new(HashMap::new()),
        }
    }

    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut buckets = lock(&self.full_at);
        self.rate.take(bucket(&mut buckets, key, now), now)
    }

    /// As [`Rate::charge`].
    pub fn charge(&self, key: K, now: Instant, count: u32) -> Duration {
        let mut buckets = lock(&self.full_at);
        self.rate.charge(bucket(&mut buckets, key, now), now, count)
    }

    /// How long it takes a key to repay its debt.
    pub fn debt(&self, key: &K, now: Instant) -> Duration {
        let buckets = lock(&self.full_at);
        let full_at = buckets.get(key);
        full_at.map_or(Duration::ZERO, |full_at| self.rate.debt(*full_at, now))
    }
}

/// The bucket of a key. A full table forgets its idle keys or, if most keys are in use, all of them.
fn bucket<K: Hash + Eq>(buckets: &mut HashMap<K, Instant>, key: K, now: Instant) -> &mut Instant {
    if buckets.len() >= KEYS && !buckets.contains_key(&key) {
        buckets.retain(|_, full_at| *full_at > now);
        if buckets.len() > KEYS / 2 {
            buckets.clear();
        }
    }
    buckets.entry(key).or_insert(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::new(Duration::from_secs(1), 10);

    #[test]
    fn a_key_may_use_its_burst_and_then_its_rate() {
        let (now, table) = (Instant::now(), Keyed::new(RATE));
        assert!((0..10).all(|_| table.take("one", now).is_ok()));
        assert_eq!(table.take("one", now), Err(Duration::from_secs(1)));
        assert!(table.take("other", now).is_ok());
        assert!(table.take("one", now + Duration::from_secs(1)).is_ok());
        assert!(table.take("one", now + Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_charge_beyond_the_burst_is_a_debt() {
        let (now, table) = (Instant::now(), Keyed::new(RATE));
        let seconds = Duration::from_secs;
        assert_eq!(table.charge("one", now, 10), Duration::ZERO);
        assert_eq!(table.charge("one", now, 5), seconds(5));
        assert_eq!(table.debt(&"one", now + seconds(2)), seconds(3));
        assert_eq!(table.charge("one", now + seconds(2), 1), seconds(4));
        assert_eq!(table.debt(&"one", now + seconds(6)), Duration::ZERO);
        assert_eq!(table.debt(&"other", now), Duration::ZERO);
    }

    #[test]
    fn the_table_is_bounded() {
        let (now, table) = (Instant::now(), Keyed::new(RATE));
        for key in 0..KEYS * 3 {
            assert!(table.take(key, now).is_ok(), "nobody is locked out");
            assert!(table.full_at.lock().unwrap().len() <= KEYS);
        }
        let later = now + Duration::from_mins(1);
        assert!(table.take(KEYS * 3, later).is_ok(), "idle keys make room");
        assert_eq!(table.full_at.lock().unwrap().len(), 1);
    }
}
