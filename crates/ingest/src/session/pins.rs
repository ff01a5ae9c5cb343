//! The client keys that agents are pinned to, as far as this instance has learned them.
//!
//! A JWT names its agent, but anyone who has stolen it can present it over keys of their own. The database
//! refuses such a request, but only inside a batch of opens. A request over a key that is known to be wrong is
//! therefore refused before it takes a place in the queue or a token of the agent's rate limit.
//!
//! A pin never changes, so an entry is never wrong. An entry that is missing costs one request to the database.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use svc_store::AgentId;

use crate::{peer::ClientKey, sync::lock};

/// How many pins are remembered; an arbitrary one makes room for the next.
const MAX_PINS: usize = 200_000;

#[derive(Debug, Default)]
pub struct Pins(Mutex<HashMap<AgentId, ClientKey>>);

impl Pins {
    /// Whether `agent` is pinned to `key`; `None` if its pin is not known here.
    pub fn matches(&self, agent: AgentId, key: ClientKey) -> Option<bool> {
        self.pins().get(&agent).map(|pinned| *pinned == key)
    }

    pub fn learn(&self, agent: AgentId, key: ClientKey) {
        let mut pins = self.pins();
        if pins.len() >= MAX_PINS
            && let Some(any) = pins.keys().next().copied()
        {
            pins.remove(&any);
        }
        pins.insert(agent, key);
    }

    fn pins(&self) -> MutexGuard<'_, HashMap<AgentId, ClientKey>> {
        lock(&self.0)
    }
}
