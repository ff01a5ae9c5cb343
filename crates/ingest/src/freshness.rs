//! How recently this instance has compared its sessions with the database.
//!
//! An instance that cannot see the database must not act on what it knows: an agent may have been
//! revoked meanwhile, or may be connected to another instance. The right to acknowledge reports, to open
//! streams and to issue JWTs therefore depends on the age of the last complete comparison, which
//! `changes::ChangeFeed` makes every few seconds.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

#[derive(Debug)]
pub struct Freshness {
    last_comparison: Mutex<Instant>,
    limit: Duration,
}

impl Freshness {
    pub fn new(limit: Duration) -> Self {
        Self {
            last_comparison: Mutex::new(Instant::now()),
            limit,
        }
    }

    /// Whether the last complete comparison is recent enough to act on.
    pub fn is_fresh(&self) -> bool {
        self.age() <= self.limit
    }

    pub fn age(&self) -> Duration {
        lock(&self.last_comparison).elapsed()
    }

    /// A complete comparison that began at `began` has succeeded. Its beginning counts, because it may
    /// have missed what changed after that.
    pub fn confirm(&self, began: Instant) {
        *lock(&self.last_comparison) = began;
    }
}
