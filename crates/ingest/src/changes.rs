//! Changes in the database, carried to the registrations and sessions of this instance that they concern.
//!
//! A notification names an agent and carries no authority: the agent is looked up. In addition, a poll
//! compares all sessions of this instance with those that the database has, every few seconds, and looks
//! up every agent that differs and every agent whose registration waits for a decision. A lost
//! notification, or a connection that cannot LISTEN, therefore costs seconds and never an answer.
//! The poll compares digests first, and reads the sessions only if they differ. A session that is held here and not stored
//! for this instance is ended if another one has taken its place, and otherwise stored again, so that the digests agree.
//!
//! A complete poll confirms the instance's [`Freshness`].

mod listen;
mod waiting;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_store::{
    AgentId, AgentStatus, Bulkhead, Displaced, SessionDigest, Store, StoreError, StoredSession,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use listen::Listen;
pub use waiting::{WaitEnd, Waiting};

use crate::{
    freshness::Freshness,
    periodic::Periodic,
    session::{EndReason, Orphans, SessionKey, SessionTable, contests, held},
    sync::lock,
};
use waiting::WaitingRoom;

/// The wait after a failed comparison. It is short, so that acknowledgements that were held back go out
/// soon after the database is back.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct ChangeFeed {
    store: Store,
    sessions: Arc<SessionTable>,
    freshness: Arc<Freshness>,
    instance: watch::Receiver<Uuid>,
    waiting: WaitingRoom,
    /// Agents to look up next. Bounded: only agents with a session or a waiting registration here get in.
    changed: Mutex<HashSet<AgentId>>,
    wake: Notify,
}

impl ChangeFeed {
    /// At most `max_waiting` agents wait for a decision.
    pub fn new(
        store: Store,
        sessions: Arc<SessionTable>,
        freshness: Arc<Freshness>,
        instance: watch::Receiver<Uuid>,
        max_waiting: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            sessions,
            freshness,
            instance,
            waiting: WaitingRoom::new(max_waiting),
            changed: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Waits for a decision about `agent`; `None` if too many agents wait. The agent is looked up at once, so that a
    /// decision made just before is not missed.
    pub fn wait_for(self: &Arc<Self>, agent: AgentId) -> Option<Waiting> {
        let waiting = Waiting::enter(self.clone(), agent)?;
        self.notice(agent);
        Some(waiting)
    }

    /// Looks the agent up soon, if it concerns this instance.
    pub fn notice(&self, agent: AgentId) {
        if self.waiting.contains(agent) || self.sessions.contains(agent) {
            lock(&self.changed).insert(agent);
            self.wake.notify_one();
        }
    }

    /// Looks every agent of this instance up soon: notifications may have been missed.
    pub fn notice_all(&self) {
        let sessions = self.sessions.keys().into_iter().map(|key| key.agent);
        let all = self.waiting.all().into_iter().chain(sessions);
        lock(&self.changed).extend(all);
        self.wake.notify_one();
    }

    pub async fn run(
        self: Arc<Self>,
        poll: Duration,
        mut orphans: Orphans,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(poll, stop);
        loop {
            let compared = tokio::select! {
                ticked = periodic.tick() => match ticked {
                    true => self.poll(&mut orphans).await,
                    false => return Ok(()),
                },
                () = self.wake.notified() => self.reconcile_changed().await,
            };
            if let Err(error) = compared {
                tracing::warn!(%error, "could not read what changed in the database: retrying");
                periodic.tick_after(RETRY.min(poll));
            }
        }
    }

    async fn reconcile_changed(&self) -> Result<(), StoreError> {
        let changed = std::mem::take(&mut *lock(&self.changed));
        self.reconcile(&changed.into_iter().collect::<Vec<_>>())
            .await
    }

    /// The complete comparison. If the digests are equal, everything that is held here is stored, its agents are active,
    /// and nothing else is stored for this instance. Otherwise the sessions are read, and agents that differ are
    /// looked up.
    async fn poll(&self, orphans: &mut Orphans) -> Result<(), StoreError> {
        let began = Instant::now();
        let ours = SessionDigest::of(self.sessions.epochs());
        let instance = *self.instance.borrow();
        if self.store.sessions_digest(instance).await? == ours {
            self.reconcile(&self.waiting.all()).await?;
            self.confirm(began);
            orphans.close(&HashSet::new(), &[]);
            return Ok(());
        }
        let held: HashSet<SessionKey> = self.sessions.keys().into_iter().collect();
        let stored = self.store.sessions_stored(instance).await?;
        let unsound = unsound(&held, &stored);
        let doubtful = [self.waiting.all(), unsound.clone()].concat();
        self.reconcile(&doubtful).await?;
        self.confirm(began);
        orphans.close(&held, &stored);
        contests::answer(&self.store, &self.sessions, &stored).await?;
        self.claim(instance, &unsound).await
    }

    /// Claims the sessions that are held here and were not ended by now: the database should have them under this instance.
    async fn claim(&self, instance: Uuid, unsound: &[AgentId]) -> Result<(), StoreError> {
        let held = self.sessions.epochs_of(unsound);
        let streams = held::claim(&self.store, instance, &held).await?;
        if streams > 0 {
            tracing::warn!(
                streams,
                "streams of this instance were not stored for it: claimed again"
            );
        }
        Ok(())
    }

    /// The sessions of this instance were as they should be when the comparison began, or have been ended.
    fn confirm(&self, began: Instant) {
        self.freshness.confirm(began);
        self.sessions.release_acks();
    }

    /// Reads the named agents from the database and delivers what it says: decisions to waiting
    /// registrations, ends to sessions that must not go on.
    async fn reconcile(&self, agents: &[AgentId]) -> Result<(), StoreError> {
        for batch in agents.chunks(held::BATCH) {
            self.reconcile_batch(batch).await?;
        }
        Ok(())
    }

    async fn reconcile_batch(&self, agents: &[AgentId]) -> Result<(), StoreError> {
        let waiting: Vec<AgentId> = agents
            .iter()
            .copied()
            .filter(|agent| self.waiting.contains(*agent))
            .collect();
        if !waiting.is_empty() {
            let statuses = self
                .store
                .agents_statuses(Bulkhead::Watch, &waiting)
                .await?;
            self.deliver(&waiting, &statuses.into_iter().collect());
        }
        let held = self.sessions.epochs_of(agents);
        if !held.is_empty() {
            let instance = *self.instance.borrow();
            let displaced = self.store.sessions_displaced(instance, &held).await?;
            for (agent, epoch, displaced) in displaced {
                if let Displaced::NotActive { since, .. } = &displaced {
                    let metrics = &self.sessions.metrics;
                    metrics.revocation_seconds.observe(since.as_secs_f64());
                }
                let key = SessionKey { agent, epoch };
                self.sessions.end(key, end_reason(&displaced));
            }
        }
        Ok(())
    }

    fn deliver(&self, waiting: &[AgentId], statuses: &HashMap<AgentId, AgentStatus>) {
        for agent in waiting {
            match statuses.get(agent) {
                Some(AgentStatus::Pending) => {}
                Some(status) => self.waiting.deliver(*agent, WaitEnd::Decided(*status)),
                None => self.waiting.deliver(*agent, WaitEnd::Deleted),
            }
        }
    }
}

/// Agents whose session is not in the database as it is here.
fn unsound(held: &HashSet<SessionKey>, stored: &[StoredSession]) -> Vec<AgentId> {
    let sound: HashSet<SessionKey> = stored
        .iter()
        .filter(|session| session.active)
        .map(SessionKey::of)
        .collect();
    held.difference(&sound).map(|key| key.agent).collect()
}

fn end_reason(displaced: &Displaced) -> EndReason {
    match displaced {
        Displaced::NotActive { status, .. } => EndReason::NotActive(*status),
        Displaced::Deleted => EndReason::Deleted,
        Displaced::Replaced => EndReason::Replaced,
    }
}
