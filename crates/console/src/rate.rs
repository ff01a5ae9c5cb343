//! Rate limits with a burst, one bucket a key, in a table of bounded size.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How many keys a table remembers. A key is dropped once its bucket is full again.
const KEYS: usize = 50_000;

/// One event per `every`, and up to `burst` at once. A bucket is a point in time: when it will be full
/// again. At the limit of keys a new key is refused: whoever fills the table locks out strangers, and
/// nobody who is known.
#[derive(Debug)]
pub struct Keyed<K> {
    every: Duration,
    burst: u32,
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Hash + Eq> Keyed<K> {
    pub fn new(every: Duration, burst: u32) -> Self {
        Self {
            every,
            burst,
            full_at: Mutex::default(),
        }
    }

    /// Takes one event, or returns how long to wait for it.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut table = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= KEYS {
            table.retain(|_, full_at| *full_at > now);
        }
        if table.len() >= KEYS && !table.contains_key(&key) {
            return Err(self.every);
        }
        let full_at = table.entry(key).or_insert(now);
        let next = (*full_at).max(now) + self.every;
        let empty_at = now + self.every * self.burst;
        if next > empty_at {
            return Err(next - empty_at);
        }
        *full_at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_use_its_burst_and_then_its_rate() {
        let (now, table) = (Instant::now(), Keyed::new(Duration::from_secs(1), 3));
        assert!((0..3).all(|_| table.take("one", now).is_ok()));
        assert_eq!(table.take("one", now), Err(Duration::from_secs(1)));
        assert!(table.take("other", now).is_ok());
        assert!(table.take("one", now + Duration::from_secs(1)).is_ok());
    }
}
