//! What changed in the database, carried to whoever waits for it on this instance.
//!
//! A notification names an agent and carries no authority: that agent is looked
//! up. A poll looks up all that are waited for, every few seconds. Both run the
//! same query, so a lost notification, or a connection that cannot LISTEN, costs
//! seconds and never an answer.

mod listen;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_store::{AgentId, AgentStatus, Store, StoreError};
use tokio::{
    sync::{Notify, watch},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

pub use listen::Listen;

/// What became of a pending agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Decided(AgentStatus),
    Deleted,
}

#[derive(Debug)]
pub struct Watch {
    store: Store,
    reinstall_quiet: Duration,
    /// Bounded by the streams that wait, which are bounded themselves.
    waiting: Mutex<HashMap<AgentId, watch::Sender<Option<Decision>>>>,
    /// Agents to look up next; only those that are waited for get in.
    changed: Mutex<HashSet<AgentId>>,
    wake: Notify,
}

/// One who waits for a decision; dropped, it waits no longer.
#[derive(Debug)]
pub struct Waiting {
    watch: Arc<Watch>,
    agent: AgentId,
    decision: watch::Receiver<Option<Decision>>,
}

impl Watch {
    pub fn new(store: Store, reinstall_quiet: Duration) -> Arc<Self> {
        Arc::new(Self {
            store,
            reinstall_quiet,
            waiting: Mutex::default(),
            changed: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Waits for a decision about `agent`. It is looked up at once, so that one
    /// made just before is not missed.
    pub fn wait_for(self: &Arc<Self>, agent: AgentId) -> Waiting {
        let decision = self
            .waiting()
            .entry(agent)
            .or_insert_with(|| watch::channel(None).0)
            .subscribe();
        self.notice(agent);
        Waiting {
            watch: self.clone(),
            agent,
            decision,
        }
    }

    /// Somebody says that this agent has changed.
    pub fn notice(&self, agent: AgentId) {
        if self.waiting().contains_key(&agent) {
            lock(&self.changed).insert(agent);
            self.wake.notify_one();
        }
    }

    /// Looks everything up soon: notifications may have been missed.
    pub fn notice_all(&self) {
        let all: Vec<AgentId> = self.waiting().keys().copied().collect();
        lock(&self.changed).extend(all);
        self.wake.notify_one();
    }

    pub async fn run(
        self: Arc<Self>,
        poll: Duration,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(poll);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.wake.notified() => {}
                _ = tick.tick() => {
                    self.admit_reinstalls().await;
                    self.notice_all();
                }
            }
            let changed = std::mem::take(&mut *lock(&self.changed));
            if let Err(error) = self.reconcile(changed).await {
                tracing::warn!(%error, "could not look up what changed: the next poll will");
            }
        }
    }

    /// Registrations that a token admits once their machine's old agent has been quiet for long enough.
    async fn admit_reinstalls(&self) {
        match self.store.reinstalls_admit(self.reinstall_quiet).await {
            Ok(admitted) => {
                for agent in admitted {
                    tracing::info!(agent.id = %agent, "a reinstallation was admitted: the old agent stayed offline");
                }
            }
            Err(error) => tracing::warn!(%error, "could not look for reinstallations that are due"),
        }
    }

    /// The one query: those that are waited for, against what stands in the database.
    async fn reconcile(&self, agents: HashSet<AgentId>) -> Result<(), StoreError> {
        if agents.is_empty() {
            return Ok(());
        }
        let agents: Vec<AgentId> = agents.into_iter().collect();
        let statuses: HashMap<AgentId, AgentStatus> = self
            .store
            .agents_statuses(&agents)
            .await?
            .into_iter()
            .collect();
        for agent in agents {
            match statuses.get(&agent) {
                Some(AgentStatus::Pending) => {}
                Some(status) => self.deliver(agent, Decision::Decided(*status)),
                None => self.deliver(agent, Decision::Deleted),
            }
        }
        Ok(())
    }

    fn deliver(&self, agent: AgentId, decision: Decision) {
        if let Some(waiting) = self.waiting().get(&agent) {
            waiting.send_replace(Some(decision));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<AgentId, watch::Sender<Option<Decision>>>> {
        lock(&self.waiting)
    }
}

impl Waiting {
    pub async fn decision(&mut self) -> Decision {
        loop {
            if let Some(decision) = *self.decision.borrow_and_update() {
                return decision;
            }
            if self.decision.changed().await.is_err() {
                return std::future::pending().await; // The sender outlives us: it is removed in our own drop.
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = self.watch.waiting();
        if waiting
            .get(&self.agent)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            waiting.remove(&self.agent);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
