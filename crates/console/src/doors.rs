//! Limits of trying to sign in, and the passwords behind them.
//!
//! Three buckets: one for a name from one address (guessing), one for an address (guessing many
//! names), one for a name (many addresses). The last is wide: otherwise anyone could lock a person out.
//! Open sessions are not affected by any of them.

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
}

impl Doors {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            passwords: Passwords::new()?,
            guesses: Keyed::new(Rate::new(Duration::from_secs(15), 6)),
            addresses: Keyed::new(Rate::new(Duration::from_secs(2), 40)),
            names: Keyed::new(Rate::new(Duration::from_secs(2), 120)),
            recorded: Keyed::new(Rate::new(Duration::from_secs(60), 2)),
        })
    }

    /// Takes one attempt at `name`, or fails with the time to wait.
    pub fn attempt(&self, address: IpAddr, name: &str) -> Result<(), AppError> {
        let (now, name) = (Instant::now(), name.to_lowercase());
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
