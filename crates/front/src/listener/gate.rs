//! Admission of connections: places, permits for handshakes, and permits for each client key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use svc_common::sync::lock;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::{Limits, activity::Activity};
use crate::{
    metrics::ListenerMetrics,
    peer::{ClientKey, Peer},
    places::{Place, Places},
};

#[derive(Debug)]
pub(super) struct Gate {
    places: Arc<Places>,
    handshakes: Semaphore,
    per_key: usize,
    /// Connections of each key, the oldest first. Bounded by the number of connections: a key is removed with its last one.
    keys: Mutex<HashMap<ClientKey, Vec<Held>>>,
    pub metrics: ListenerMetrics,
}

/// One connection of a key.
#[derive(Clone, Debug)]
struct Held {
    activity: Arc<Activity>,
    /// Closes the connection.
    closing: CancellationToken,
}

/// The permit of one connection among those of its client key.
#[derive(Debug)]
pub(super) struct KeyPermit {
    gate: Arc<Gate>,
    key: ClientKey,
    activity: Arc<Activity>,
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

    /// A permit for one more connection of the client's key, or `None` when all that it may have are busy. The oldest that
    /// has no call in progress gives way: a client whose path was lost several times has left connections behind, which end
    /// only when their keepalive fails.
    pub(super) fn enter_key(
        self: &Arc<Self>,
        peer: &Peer,
        activity: &Arc<Activity>,
    ) -> Option<KeyPermit> {
        let mut keys = lock(&self.keys);
        let held = keys.entry(peer.key).or_default();
        if held.len() >= self.per_key {
            let idle = held.iter().position(|one| one.activity.none_running())?;
            held.remove(idle).closing.cancel();
        }
        held.push(Held {
            activity: activity.clone(),
            closing: peer.closing.clone(),
        });
        Some(KeyPermit {
            gate: self.clone(),
            key: peer.key,
            activity: activity.clone(),
        })
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        let mut keys = lock(&self.gate.keys);
        if let Some(held) = keys.get_mut(&self.key) {
            held.retain(|one| !Arc::ptr_eq(&one.activity, &self.activity));
            if held.is_empty() {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of this key.
    fn connection(gate: &Gate, key: u8) -> (Peer, Arc<Activity>) {
        let place = gate.enter().expect("a place is free");
        let peer = Peer {
            key: ClientKey([key; 32]),
            address: ([127, 0, 0, 1], 1).into(),
            closing: CancellationToken::new(),
            standing: place.standing().clone(),
        };
        (peer, Arc::default())
    }

    #[test]
    fn the_busy_connections_of_a_key_are_limited_and_the_oldest_idle_one_gives_way() {
        let gate = Arc::new(Gate::new(Limits::new(10), ListenerMetrics::default()));
        let connections: Vec<_> = (0..4).map(|_| connection(&gate, 1)).collect();
        let enter = |(peer, activity): &(Peer, _)| gate.enter_key(peer, activity);
        let permits: Vec<_> = connections.iter().map(|one| enter(one).unwrap()).collect();
        let mut busy: Vec<_> = connections
            .iter()
            .map(|(_, activity)| Activity::begin(activity.clone()))
            .collect();
        assert!(enter(&connection(&gate, 1)).is_none());
        assert!(enter(&connection(&gate, 2)).is_some());
        busy.drain(1..3);
        let fifth = enter(&connection(&gate, 1)).expect("two are idle");
        let closed = |(peer, _): &(Peer, _)| peer.closing.is_cancelled();
        assert_eq!(
            connections.iter().map(closed).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        drop((permits, fifth));
        assert!(
            lock(&gate.keys).is_empty(),
            "a key without connections stays"
        );
    }
}
