//! Admission of connections: places, permits for handshakes, and permits for each client key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Limits;
use crate::{
    peer::ClientKey,
    places::{Place, Places},
    sync::lock,
    telemetry::ListenerMetrics,
};

#[derive(Debug)]
pub(super) struct Gate {
    places: Arc<Places>,
    handshakes: Semaphore,
    per_key: usize,
    /// Connections of each key. Bounded by the number of connections: a key is removed with its last one.
    keys: Mutex<HashMap<ClientKey, usize>>,
    pub metrics: ListenerMetrics,
}

/// The permit of one connection among those of its client key.
#[derive(Debug)]
pub(super) struct KeyPermit {
    gate: Arc<Gate>,
    key: ClientKey,
}

impl Gate {
    pub(super) fn new(limits: Limits, metrics: ListenerMetrics) -> Self {
        Self {
            places: Arc::new(Places::new(
                limits.connections,
                limits.unproven,
                metrics.clone(),
            )),
            handshakes: Semaphore::new(limits.handshakes),
            per_key: limits.connections_per_key,
            keys: Mutex::default(),
            metrics,
        }
    }

    /// A place for one more connection, or `None` when it is shed.
    pub(super) fn enter(&self) -> Option<Place> {
        self.places.enter()
    }

    /// A permit for the expensive part of a handshake.
    pub(super) async fn handshake_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// A permit for one more connection of `key`, or `None` when it has too many.
    pub(super) fn enter_key(self: &Arc<Self>, key: ClientKey) -> Option<KeyPermit> {
        let mut keys = lock(&self.keys);
        let count = keys.entry(key).or_default();
        if *count >= self.per_key {
            return None;
        }
        *count += 1;
        Some(KeyPermit {
            gate: self.clone(),
            key,
        })
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        let mut keys = lock(&self.gate.keys);
        match keys.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(keys.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_of_a_key_are_limited_and_permits_return() {
        let gate = Arc::new(Gate::new(Limits::new(10), ListenerMetrics::default()));
        let (one, other) = (ClientKey([1; 32]), ClientKey([2; 32]));
        let permits: Vec<_> = (0..4).map(|_| gate.enter_key(one).unwrap()).collect();
        assert!(gate.enter_key(one).is_none());
        assert!(gate.enter_key(other).is_some());
        drop(permits);
        assert!(gate.enter_key(one).is_some());
        assert!(
            lock(&gate.keys).is_empty(),
            "a key without connections stays"
        );
    }
}
