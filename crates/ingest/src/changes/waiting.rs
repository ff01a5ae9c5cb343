//! Registrations that wait for an administrator's decision.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use svc_store::{AgentId, AgentStatus};
use tokio::sync::watch;

use super::{ChangeFeed, lock};

/// What happened to a pending agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Decided(AgentStatus),
    Deleted,
}

/// Agents with at least one waiting registration on this instance. Bounded by the permits for waiting
/// registrations.
#[derive(Debug, Default)]
pub(super) struct WaitingRoom(Mutex<HashMap<AgentId, watch::Sender<Option<Decision>>>>);

/// One waiting registration. Dropping it ends the wait.
#[derive(Debug)]
pub struct Waiting {
    changes: Arc<ChangeFeed>,
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
    pub(super) fn enter(changes: Arc<ChangeFeed>, agent: AgentId) -> Self {
        let decision = {
            let mut room = changes.waiting.room();
            room.entry(agent)
                .or_insert_with(|| watch::channel(None).0)
                .subscribe()
        };
        Self {
            changes,
            agent,
            decision,
        }
    }

    pub async fn decision(&mut self) -> Decision {
        let decided = self.decision.wait_for(Option::is_some).await;
        match decided.ok().and_then(|decision| *decision) {
            Some(decision) => decision,
            // The sender lives until this is dropped, so this does not happen.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut room = self.changes.waiting.room();
        let last = |sender: &watch::Sender<_>| sender.receiver_count() <= 1;
        if room.get(&self.agent).is_some_and(last) {
            room.remove(&self.agent);
        }
    }
}
