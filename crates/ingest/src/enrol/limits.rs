//! Rate limits of registrations.
//!
//! Each client key has a bucket of its own. The instance also has one bucket for all known keys, one for all valid
//! tokens and one for everything else, so that unknown clients can block neither the fleet nor new agents. There is no
//! limit by address: fleets are behind NAT and load balancers.

use std::{sync::Mutex, time::Duration};

use svc_front::peer::ClientKey;
use svc_store::{RegistrationLookup, TokenState};
use tokio::time::Instant;

use crate::{
    rate::{Keyed, Rate},
    sync::lock,
};

const PER_KEY: Rate = Rate::new(Duration::from_secs(1), 10);
const KNOWN_KEYS: Rate = Rate::new(Duration::from_micros(500), 5000);
/// A burst is a fleet that is rolled out at once.
const VALID_TOKENS: Rate = Rate::new(Duration::from_millis(1), 10_000);
const FAILURES: Rate = Rate::new(Duration::from_millis(50), 100);

/// The buckets of one instance.
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

    /// The limit of one client key, checked before the lookup.
    pub fn key(&self, key: ClientKey, now: Instant) -> Result<(), Duration> {
        self.keys.take(key, now)
    }

    /// The limit of the client's class, checked after the lookup of its key and token. A token counts only if the request
    /// spends it: the successor of an unknown key is refused, and the token could be shown again without end.
    pub fn class(
        &self,
        look: &RegistrationLookup,
        succeeds: bool,
        now: Instant,
    ) -> Result<(), Duration> {
        let (rate, full_at) = match (look.key_known, &look.token) {
            (true, _) => (KNOWN_KEYS, &self.known),
            (false, Some(TokenState::Active)) if !succeeds => (VALID_TOKENS, &self.tokens),
            (false, _) => (FAILURES, &self.failures),
        };
        rate.take(&mut lock(full_at), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_clients_block_neither_the_fleet_nor_new_agents() {
        let look = |key_known, token| RegistrationLookup { key_known, token };
        let now = Instant::now();
        let limits = RegisterLimits::new(now);
        let valid = look(false, Some(TokenState::Active));
        while limits.class(&look(false, None), false, now).is_ok() {}
        assert!(limits.class(&valid, true, now).is_err(), "it is not spent");
        assert!(limits.class(&look(true, None), false, now).is_ok());
        assert!(limits.class(&valid, false, now).is_ok());
    }
}
