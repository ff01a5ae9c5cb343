//! Which IP addresses to try last: those that the agent has left.
//!
//! A name may stand for several instances. If one of them accepts connections and then
//! hangs, refuses or drains, the resolver still returns its address first, and the agent
//! would return to it for ever. So the agent remembers the addresses that it left, and
//! tries them after all others, the one that it left first before the rest.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use crate::sync::locked;

/// As many as one name can have. The addresses that were left first are forgotten.
const MOST: usize = 16;

/// Shared by all connections of an agent.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    current: Option<SocketAddr>,
    left: VecDeque<SocketAddr>,
}

impl Peers {
    /// A connection to this address is open.
    pub(super) fn connected(&self, peer: SocketAddr) {
        let mut known = locked(&self.0);
        known.left.retain(|left| *left != peer);
        known.current = Some(peer);
    }

    /// The address did not complete the handshake.
    pub(super) fn failed(&self, peer: SocketAddr) {
        locked(&self.0).leave(peer);
    }

    /// The agent leaves the address of its newest connection.
    pub fn leave(&self) {
        let mut known = locked(&self.0);
        if let Some(peer) = known.current.take() {
            known.leave(peer);
        }
    }

    /// Moves the addresses that were left to the end.
    pub(super) fn order(&self, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let known = locked(&self.0);
        let place = |address: &SocketAddr| known.left.iter().position(|left| left == address);
        addresses.sort_by_key(|address| place(address).map_or(0, |place| place + 1));
        addresses
    }
}

impl Known {
    fn leave(&mut self, peer: SocketAddr) {
        self.left.retain(|left| *left != peer);
        self.left.push_back(peer);
        if self.left.len() > MOST {
            self.left.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_were_left_come_last_and_the_oldest_of_them_first() {
        let all: Vec<SocketAddr> = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
            .map(|text| text.parse().unwrap())
            .into();
        let peers = Peers::default();
        assert_eq!(peers.order(all.clone()), all);
        peers.connected(all[0]);
        peers.leave();
        peers.leave();
        assert_eq!(peers.order(all.clone()), [all[1], all[2], all[0]]);
        peers.failed(all[1]);
        assert_eq!(peers.order(all.clone()), [all[2], all[0], all[1]]);
        peers.connected(all[0]);
        assert_eq!(peers.order(all.clone()), [all[0], all[2], all[1]]);
        for port in 2..100 {
            peers.failed(([10, 0, 0, 9], port).into());
        }
        assert_eq!(locked(&peers.0).left.len(), MOST);
    }
}
