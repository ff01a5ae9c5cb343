//! Registrations that wait for an administrator's decision.
//!
//! An agent has one place, however many calls it makes: the newest call takes it, as a newer stream replaces an older
//! one. Otherwise one pending agent could take the places of all others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use svc_store::{AgentId, AgentStatus};
use tokio::sync::oneshot;

use super::ChangeFeed;
use crate::sync::lock;

/// How the wait of a registration ends: what happened to its agent, or to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    Decided(AgentStatus),
    Deleted,
    /// A newer call of the same agent waits instead.
    Replaced,
}

/// The agents with a waiting registration on this instance, at most `places`. An agent that finds no place is refused.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    places: usize,
    waiting: Mutex<HashMap<AgentId, oneshot::Sender<WaitEnd>>>,
}

/// One waiting registration. Dropping it ends the wait.
#[derive(Debug)]
pub struct Waiting {
    changes: Arc<ChangeFeed>,
    agent: AgentId,
    decision: oneshot::Receiver<WaitEnd>,
}

impl WaitingRoom {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn contains(&self, agent: AgentId) -> bool {
        lock(&self.waiting).contains_key(&agent)
    }

    pub(super) fn all(&self) -> Vec<AgentId> {
        lock(&self.waiting).keys().copied().collect()
    }

    /// The call takes the decision with it, and leaves its place.
    pub(super) fn deliver(&self, agent: AgentId, decision: WaitEnd) {
        if let Some(call) = lock(&self.waiting).remove(&agent) {
            call.send(decision).ok(); // The client may have left.
        }
    }

    /// A place for a call of this agent, which ends an older one.
    fn enter(&self, agent: AgentId) -> Option<oneshot::Receiver<WaitEnd>> {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= self.places && !waiting.contains_key(&agent) {
            return None;
        }
        let (call, decision) = oneshot::channel();
        if let Some(older) = waiting.insert(agent, call) {
            older.send(WaitEnd::Replaced).ok();
        }
        Some(decision)
    }

    /// Frees the place of a call that has ended, if no newer one has taken it: the newer one still listens.
    fn leave(&self, agent: AgentId) {
        let mut waiting = lock(&self.waiting);
        if waiting.get(&agent).is_some_and(oneshot::Sender::is_closed) {
            waiting.remove(&agent);
        }
    }
}

impl Waiting {
    pub(super) fn enter(changes: Arc<ChangeFeed>, agent: AgentId) -> Option<Self> {
        let decision = changes.waiting.enter(agent)?;
        Some(Self {
            changes,
            agent,
            decision,
        })
    }

    pub async fn decision(&mut self) -> WaitEnd {
        // The sender is dropped only after it has sent, so there is always a decision.
        (&mut self.decision).await.unwrap_or(WaitEnd::Replaced)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.decision.close();
        self.changes.waiting.leave(self.agent);
    }
}
