//! How often one may ask for registration.
//!
//! Each client key has a bucket of its own. Beside it the instance keeps one each
//! for known keys, for valid tokens and for failures, so that strangers cannot
//! starve the fleet, nor one bad host all enrolment. Addresses count for nothing:
//! fleets sit behind NAT and load balancers.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use svc_store::{Look, TokenState};
use tokio::time::Instant;

use crate::listener::ClientKey;

/// How many keys are remembered; a key is forgotten once its bucket is full again.
const KEYS: usize = 100_000;

/// A rate with a burst, kept as one point in time: when the bucket will be full again.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    every: Duration,
    burst: u32,
}

impl TokenBucket {
    pub const fn new(every: Duration, burst: u32) -> Self {
        Self { every, burst }
    }

    /// Takes one; `Err` says how long to wait for it.
    fn take(self, full_at: &mut Instant, now: Instant) -> Result<(), Duration> {
        let next = (*full_at).max(now) + self.every;
        let empty_at = now + self.every * self.burst;
        if next > empty_at {
            return Err(next - empty_at);
        }
        *full_at = next;
        Ok(())
    }
}

const PER_KEY: TokenBucket = TokenBucket::new(Duration::from_secs(1), 10);
const KNOWN_KEYS: TokenBucket = TokenBucket::new(Duration::from_micros(500), 5000);
const VALID_TOKENS: TokenBucket = TokenBucket::new(Duration::from_millis(1), 2000);
const FAILURES: TokenBucket = TokenBucket::new(Duration::from_millis(50), 100);

#[derive(Debug)]
pub struct RegisterLimits {
    keys: Mutex<HashMap<ClientKey, Instant>>,
    known: Mutex<Instant>,
    tokens: Mutex<Instant>,
    failures: Mutex<Instant>,
}

impl RegisterLimits {
    pub fn new(now: Instant) -> Self {
        Self {
            keys: Mutex::default(),
            known: Mutex::new(now),
            tokens: Mutex::new(now),
            failures: Mutex::new(now),
        }
    }

    /// Before the database is asked anything.
    pub fn key(&self, key: ClientKey, now: Instant) -> Result<(), Duration> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS {
            keys.retain(|_, full_at| *full_at > now);
        }
        if keys.len() >= KEYS && !keys.contains_key(&key) {
            return Err(PER_KEY.every);
        }
        PER_KEY.take(keys.entry(key).or_insert(now), now)
    }

    /// Once it is known whom the call can concern.
    pub fn class(&self, look: &Look, now: Instant) -> Result<(), Duration> {
        let (bucket, full_at) = match look {
            Look {
                key_known: true, ..
            } => (KNOWN_KEYS, &self.known),
            Look {
                token: Some(TokenState::Active),
                ..
            } => (VALID_TOKENS, &self.tokens),
            _ => (FAILURES, &self.failures),
        };
        bucket.take(
            &mut full_at.lock().unwrap_or_else(PoisonError::into_inner),
            now,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Look = Look {
        key_known: true,
        token: None,
    };
    const VALID: Look = Look {
        key_known: false,
        token: Some(TokenState::Active),
    };
    const STRANGER: Look = Look {
        key_known: false,
        token: None,
    };

    #[test]
    fn a_key_has_ten_at_once_and_then_one_a_second() {
        let now = Instant::now();
        let limits = RegisterLimits::new(now);
        let key = ClientKey([7; 32]);
        assert!((0..10).all(|_| limits.key(key, now).is_ok()));
        assert_eq!(limits.key(key, now), Err(Duration::from_secs(1)));
        assert!(limits.key(ClientKey([8; 32]), now).is_ok());
        assert!(limits.key(key, now + Duration::from_secs(1)).is_ok());
        assert!(limits.key(key, now + Duration::from_secs(1)).is_err());
    }

    #[test]
    fn strangers_starve_neither_the_fleet_nor_enrolment() {
        let now = Instant::now();
        let limits = RegisterLimits::new(now);
        while limits.class(&STRANGER, now).is_ok() {}
        assert!(limits.class(&KNOWN, now).is_ok());
        assert!(limits.class(&VALID, now).is_ok());
    }

    #[test]
    fn the_table_of_keys_is_bounded() {
        let now = Instant::now();
        let limits = RegisterLimits::new(now);
        let key = |n: u32| ClientKey(std::array::from_fn(|i| n.to_be_bytes()[i % 4]));
        for n in 0..110_000 {
            let _ = limits.key(key(n), now);
        }
        assert_eq!(limits.keys.lock().unwrap().len(), KEYS);
        assert!(limits.key(key(0), now).is_ok(), "those who are in stay in");
        assert!(
            limits
                .key(key(999_999), now + Duration::from_mins(1))
                .is_ok(),
            "idle keys make room"
        );
        assert_eq!(limits.keys.lock().unwrap().len(), 1);
    }
}
