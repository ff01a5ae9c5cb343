//! Limits of trying to sign in, and the passwords behind them.
//!
//! Three buckets: one for a name from one network (guessing), one for a network (guessing many names), one for a name
//! (many networks). The last is wide, and a browser in which the person has signed in before has a bucket of its own
//! instead of all three: otherwise anyone could lock a person out. Open sessions are not affected by any of them.

use std::{net::IpAddr, time::Duration};

use svc_common::rate::{Keyed, Rate};
use tokio::time::Instant;

use crate::{address::network, error::AppError, password::Passwords};

#[derive(Debug)]
pub struct Doors {
    pub passwords: Passwords,
    guesses: Keyed<(IpAddr, String)>,
    addresses: Keyed<IpAddr>,
    names: Keyed<String>,
    recorded: Keyed<IpAddr>,
    browsers: Keyed<[u8; 32]>,
}

impl Doors {
    pub fn new() -> anyhow::Result<Self> {
        let guesses = Rate::new(Duration::from_secs(15), 6);
        Ok(Self {
            passwords: Passwords::new()?,
            browsers: Keyed::new(guesses),
            guesses: Keyed::new(guesses),
            addresses: Keyed::new(Rate::new(Duration::from_secs(2), 40)),
            names: Keyed::new(Rate::new(Duration::from_secs(2), 120)),
            recorded: Keyed::new(Rate::new(Duration::from_secs(60), 2)),
        })
    }

    /// Takes one attempt at `name`, or fails with the time to wait. `browser` is known to be the person's.
    pub fn attempt(
        &self,
        address: IpAddr,
        name: &str,
        browser: Option<[u8; 32]>,
    ) -> Result<(), AppError> {
        let (now, name) = (Instant::now(), name.to_lowercase());
        if let Some(browser) = browser {
            let taken = self.browsers.take(browser, now);
            return taken.map_err(AppError::Limited);
        }
        let address = network(address);
        let guess = self.guesses.take((address, name.clone()), now);
        guess
            .and_then(|()| self.addresses.take(address, now))
            .and_then(|()| self.names.take(name, now))
            .map_err(AppError::Limited)
    }

    /// Whether an attempt that was limited is recorded. Otherwise a flood of them would be one of statements too.
    pub fn may_record(&self, address: IpAddr) -> bool {
        let taken = self.recorded.take(network(address), Instant::now());
        taken.is_ok()
    }

    /// Takes one attempt at a one-time code. Codes cannot be guessed: only the work is limited.
    pub fn attempt_code(&self, address: IpAddr) -> Result<(), AppError> {
        let taken = self.addresses.take(network(address), Instant::now());
        taken.map_err(AppError::Limited)
    }
}
