//! Registrations that wait for an administrator's decision.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use svc_store::{AgentId, AgentStatus};
use tokio::sync::watch;

use super::ChangeFeed;
use crate::sync::lock;

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
        lock(&self.0).contains_key(&agent)
    }

    pub(super) fn all(&self) -> Vec<AgentId> {
        lock(&self.0).keys().copied().collect()
    }

    pub(super) fn deliver(&self, agent: AgentId, decision: Decision) {
        if let Some(waiting) = lock(&self.0).get(&agent) {
            waiting.send_replace(Some(decision));
        }
    }
}

impl Waiting {
    pub(super) fn enter(changes: Arc<ChangeFeed>, agent: AgentId) -> Self {
        let decision = {
            let mut room = lock(&changes.waiting.0);
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
        let mut room = lock(&self.changes.waiting.0);
        let last = |sender: &watch::Sender<_>| sender.receiver_count() <= 1;
        if room.get(&self.agent).is_some_and(last) {
            room.remove(&self.agent);
        }
    }
}
