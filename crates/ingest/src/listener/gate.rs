//! Who may come in: places for connections, for handshakes, and for each key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::Limits;
use crate::{peer::ClientKey, telemetry::ListenerMetrics};

#[derive(Debug)]
pub(super) struct Gate {
    connections: Arc<Semaphore>,
    handshakes: Semaphore,
    per_key: usize,
    /// Bounded by the number of connections: a key is forgotten with its last one.
    keys: Mutex<HashMap<ClientKey, usize>>,
    pub metrics: ListenerMetrics,
}

/// A connection's place; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    metrics: ListenerMetrics,
}

/// A connection's place among those of its key.
#[derive(Debug)]
pub(super) struct KeyPlace {
    gate: Arc<Gate>,
    key: ClientKey,
}

impl Gate {
    pub(super) fn new(limits: Limits, metrics: ListenerMetrics) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            handshakes: Semaphore::new(limits.handshakes),
            per_key: limits.connections_per_key,
            keys: Mutex::default(),
            metrics,
        }
    }

    /// A place for one more connection, or `None` when all are taken.
    pub(super) fn enter(&self) -> Option<Place> {
        let Ok(permit) = self.connections.clone().try_acquire_owned() else {
            self.metrics.shed.inc();
            return None;
        };
        self.metrics.connections.inc();
        Some(Place {
            _permit: permit,
            metrics: self.metrics.clone(),
        })
    }

    /// A turn at the CPU, for the part of a handshake that is dear.
    pub(super) async fn handshake_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// A place for one more connection of `key`, or `None` when it has too many.
    pub(super) fn enter_key(self: &Arc<Self>, key: ClientKey) -> Option<KeyPlace> {
        let mut keys = self.keys();
        let count = keys.entry(key).or_default();
        if *count >= self.per_key {
            return None;
        }
        *count += 1;
        Some(KeyPlace {
            gate: self.clone(),
            key,
        })
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<ClientKey, usize>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        let mut keys = self.gate.keys();
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
    fn a_key_has_its_places_and_no_more_and_gets_them_back() {
        let gate = Arc::new(Gate::new(Limits::new(10), ListenerMetrics::default()));
        let (one, other) = (ClientKey([1; 32]), ClientKey([2; 32]));
        let places: Vec<_> = (0..4).map(|_| gate.enter_key(one).unwrap()).collect();
        assert!(gate.enter_key(one).is_none());
        assert!(gate.enter_key(other).is_some());
        drop(places);
        assert!(gate.enter_key(one).is_some());
        assert!(
            gate.keys().is_empty(),
            "a key without connections is forgotten"
        );
    }

    #[test]
    fn when_all_places_are_taken_newcomers_are_shed() {
        let gate = Gate::new(Limits::new(1), ListenerMetrics::default());
        let place = gate.enter().unwrap();
        assert!(gate.enter().is_none());
        assert_eq!(
            (gate.metrics.shed.get(), gate.metrics.connections.get()),
            (1, 1)
        );
        drop(place);
        assert!(gate.enter().is_some());
    }
}
