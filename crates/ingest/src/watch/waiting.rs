//! Registrations that wait for a decision: a room, and one who waits in it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use svc_store::{AgentId, AgentStatus};
use tokio::sync::watch;

use super::{Watch, lock};

/// What became of a pending agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Decided(AgentStatus),
    Deleted,
}

/// Bounded by the streams that wait, which are bounded themselves.
#[derive(Debug, Default)]
pub(super) struct WaitingRoom(Mutex<HashMap<AgentId, watch::Sender<Option<Decision>>>>);

/// One who waits for a decision; dropped, it waits no longer.
#[derive(Debug)]
pub struct Waiting {
    watch: Arc<Watch>,
    agent: AgentId,
    decision: watch::Receiver<Option<Decision>>,
}

impl WaitingRoom {
    pub(super) fn contains(&self, agent: AgentId) -> bool {
        self.room().contains_key(&agent)
    }

    pub(super) fn all(&self) -> Vec<AgentId> {
        self.room().keys().copied().collect()
    }

    pub(super) fn deliver(&self, agent: AgentId, decision: Decision) {
        if let Some(waiting) = self.room().get(&agent) {
            waiting.send_replace(Some(decision));
        }
    }

    fn room(&self) -> MutexGuard<'_, HashMap<AgentId, watch::Sender<Option<Decision>>>> {
        lock(&self.0)
    }
}

impl Waiting {
    pub(super) fn enter(watch: Arc<Watch>, agent: AgentId) -> Self {
        let decision = {
            let mut room = watch.waiting.room();
            room.entry(agent)
                .or_insert_with(|| watch::channel(None).0)
                .subscribe()
        };
        Self {
            watch,
            agent,
            decision,
        }
    }

    pub async fn decision(&mut self) -> Decision {
        loop {
            if let Some(decision) = *self.decision.borrow_and_update() {
                return decision;
            }
            if self.decision.changed().await.is_err() {
                // The sender outlives us: it is removed in our own drop.
                return std::future::pending().await;
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut room = self.watch.waiting.room();
        let last = |sender: &watch::Sender<_>| sender.receiver_count() <= 1;
        if room.get(&self.agent).is_some_and(last) {
            room.remove(&self.agent);
        }
    }
}
