//! New keys that agents with a stream here have proven to hold, until [`Keys`](super::Keys) stores them.

use std::{collections::HashMap, mem, sync::Mutex};

use svc_store::{AgentId, NextKey};

use crate::sync::lock;

/// What became of a key that an agent announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    pub key: [u8; 32],
    /// Why it was not stored, or empty.
    pub refused: String,
}

/// The keys that agents with a stream here have proven to hold: at most one for each agent, the newest.
#[derive(Debug, Default)]
pub struct NextKeys(Mutex<HashMap<AgentId, NextKey>>);

impl NextKeys {
    pub fn put(&self, next: NextKey) {
        lock(&self.0).insert(next.agent, next);
    }

    pub fn take(&self) -> Vec<NextKey> {
        mem::take(&mut *lock(&self.0)).into_values().collect()
    }

    /// What was announced meanwhile is newer.
    pub fn put_back(&self, next: &NextKey) {
        lock(&self.0).entry(next.agent).or_insert(*next);
    }
}
