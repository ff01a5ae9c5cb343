//! Whether the service can do its work, for `/healthz` and `grpc.health.v1`.
//!
//! A database that is away for a moment does not make the service unhealthy: restarting every instance at once
//! would only add a stampede. It counts after a grace.
//!
//! A database that answers reads and refuses writes is as good as away: no sample is stored, no lease renewed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_store::Store;
use tokio::time::Instant;

use crate::sync::lock;

#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    phase: Mutex<Phase>,
    store: Store,
    grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Starting(&'static str),
    Serving,
    Draining,
}

impl Health {
    pub fn new(store: Store, grace: Duration) -> Self {
        Self(Arc::new(Inner {
            phase: Mutex::new(Phase::Starting("reading its configuration")),
            store,
            grace,
        }))
    }

    pub fn starting(&self, step: &'static str) {
        self.set(Phase::Starting(step));
    }

    pub fn serving(&self) {
        self.set(Phase::Serving);
    }

    pub fn draining(&self) {
        self.set(Phase::Draining);
    }

    /// `Err` carries one line of reason.
    pub fn verdict(&self) -> Result<(), String> {
        match &*lock(&self.0.phase) {
            Phase::Starting(step) => Err(format!("starting: {step}")),
            Phase::Draining => Err("draining: this instance is stopping".into()),
            Phase::Serving => self.database(),
        }
    }

    fn database(&self) -> Result<(), String> {
        let store = &self.0.store;
        let longer = |since: Option<Instant>| {
            let length = since?.elapsed();
            (length >= self.0.grace).then_some(length.as_secs())
        };
        if let Some(seconds) = longer(store.away_since()) {
            return Err(format!("the database has been away for {seconds} s"));
        }
        match longer(store.unwritable_since()) {
            Some(seconds) => Err(format!("the database has refused writes for {seconds} s")),
            None => Ok(()),
        }
    }

    fn set(&self, phase: Phase) {
        *lock(&self.0.phase) = phase;
    }
}
