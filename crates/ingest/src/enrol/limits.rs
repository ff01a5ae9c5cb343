//! How often one may ask for registration.
//!
//! Each client key has a bucket of its own. Beside it the instance keeps one each
//! for known keys, for valid tokens and for failures, so that strangers cannot
//! starve the fleet, nor one bad host all enrolment. Addresses count for nothing:
//! fleets sit behind NAT and load balancers.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use svc_store::{Look, TokenState};
use tokio::time::Instant;

use crate::{
    peer::ClientKey,
    rate::{Keyed, Rate},
};

const PER_KEY: Rate = Rate::new(Duration::from_secs(1), 10);
const KNOWN_KEYS: Rate = Rate::new(Duration::from_micros(500), 5000);
const VALID_TOKENS: Rate = Rate::new(Duration::from_millis(1), 2000);
const FAILURES: Rate = Rate::new(Duration::from_millis(50), 100);

#[derive(Debug)]
pub struct RegisterLimits {
    keys: Keyed<ClientKey>,
    known: Mutex<Instant>,
    tokens: Mutex<Instant>,
    failures: Mutex<Instant>,
}

impl RegisterLimits {
    pub fn new(now: Instant) -> Self {
        Self {
            keys: Keyed::new(PER_KEY),
            known: Mutex::new(now),
            tokens: Mutex::new(now),
            failures: Mutex::new(now),
        }
    }

    /// Before the database is asked anything.
    pub fn key(&self, key: ClientKey, now: Instant) -> Result<(), Duration> {
        self.keys.take(key, now)
    }

    /// Once it is known whom the call can concern.
    pub fn class(&self, look: &Look, now: Instant) -> Result<(), Duration> {
        let (rate, full_at) = match (look.key_known, &look.token) {
            (true, _) => (KNOWN_KEYS, &self.known),
            (false, Some(TokenState::Active)) => (VALID_TOKENS, &self.tokens),
            (false, _) => (FAILURES, &self.failures),
        };
        rate.take(
            &mut full_at.lock().unwrap_or_else(PoisonError::into_inner),
            now,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_starve_neither_the_fleet_nor_enrolment() {
        let look = |key_known, token| Look { key_known, token };
        let now = Instant::now();
        let limits = RegisterLimits::new(now);
        while limits.class(&look(false, None), now).is_ok() {}
        assert!(limits.class(&look(true, None), now).is_ok());
        let valid = Some(TokenState::Active);
        assert!(limits.class(&look(false, valid), now).is_ok());
    }
}
