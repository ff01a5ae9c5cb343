//! What changed in the database, carried to whoever it concerns on this instance:
//! registrations that wait for a decision, and open streams.
//!
//! A notification names an agent and carries no authority: that agent is looked
//! up. A poll compares all streams here with those that stand in the database, every
//! few seconds, and looks up whoever differs, and whoever waits. So a lost
//! notification, or a connection that cannot LISTEN, costs seconds and never an answer. How long ago the last complete look was is what
//! the instance's right to issue and to acknowledge hangs on.

mod listen;
mod waiting;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_store::{
    AgentId, AgentStatus, CloseCause, Displaced, SessionClose, SessionStanding, Store, StoreError,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use listen::Listen;
pub use waiting::{Decision, Waiting};

use crate::{
    clock::DatabaseClock,
    config::Timing,
    session::{Closer, Ending, Sessions},
};
use waiting::WaitingRoom;

/// An agent, and which of its streams.
type Stream = (AgentId, i64);

/// When a look has failed, so that what was held back meanwhile goes out soon after.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Watch {
    store: Store,
    timing: Timing,
    waiting: WaitingRoom,
    sessions: Arc<Sessions>,
    closer: Arc<Closer>,
    clock: DatabaseClock,
    instance: watch::Receiver<Uuid>,
    /// Agents to look up next; only those that concern this instance get in.
    changed: Mutex<HashSet<AgentId>>,
    wake: Notify,
    last_look: Mutex<Instant>,
    stop: CancellationToken,
}

impl Watch {
    pub fn new(
        store: Store,
        timing: Timing,
        sessions: Arc<Sessions>,
        closer: Arc<Closer>,
        clock: DatabaseClock,
        instance: watch::Receiver<Uuid>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            timing,
            waiting: WaitingRoom::default(),
            sessions,
            closer,
            clock,
            instance,
            changed: Mutex::default(),
            wake: Notify::new(),
            last_look: Mutex::new(Instant::now()),
            stop,
        })
    }

    /// Waits for a decision about `agent`. It is looked up at once, so that one
    /// made just before is not missed.
    pub fn wait_for(self: &Arc<Self>, agent: AgentId) -> Waiting {
        let waiting = Waiting::enter(self.clone(), agent);
        self.notice(agent);
        waiting
    }

    /// Somebody says that this agent has changed.
    pub fn notice(&self, agent: AgentId) {
        if self.waiting.contains(agent) || self.sessions.contains(agent) {
            lock(&self.changed).insert(agent);
            self.wake.notify_one();
        }
    }

    /// Looks at everything soon: notifications may have been missed.
    pub fn notice_all(&self) {
        let all = self.everybody();
        lock(&self.changed).extend(all);
        self.wake.notify_one();
    }

    /// Whether the last complete look is recent enough to act on.
    pub fn is_fresh(&self) -> bool {
        self.blind_for() <= self.timing.freshness
    }

    pub fn blind_for(&self) -> Duration {
        lock(&self.last_look).elapsed()
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(self.timing.poll);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut orphans = HashSet::new();
        loop {
            let looked = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.wake.notified() => self.reconcile_changed().await,
                _ = tick.tick() => self.pass(&mut orphans).await,
            };
            if let Err(error) = looked {
                tracing::warn!(%error, "could not look up what changed: trying again");
                tick.reset_after(RETRY.min(self.timing.poll));
            }
        }
    }

    async fn reconcile_changed(&self) -> Result<(), StoreError> {
        let changed: Vec<AgentId> = std::mem::take(&mut *lock(&self.changed))
            .into_iter()
            .collect();
        self.reconcile(&changed).await
    }

    /// The complete look. `orphans` are the streams that the database believed to
    /// be here at the last one, though they were not.
    ///
    /// One statement tells what stands in the database; only what differs is asked about.
    async fn pass(&self, orphans: &mut HashSet<Stream>) -> Result<(), StoreError> {
        let began = Instant::now();
        self.clock
            .set_offset(self.store.database_clock_offset().await?);
        let held: HashSet<Stream> = self.sessions.epochs().into_iter().collect();
        let instance = *self.instance.borrow();
        let standing = self.store.sessions_standing(instance).await?;
        self.reconcile(&self.doubtful(&held, &standing)).await?;
        *lock(&self.last_look) = began;
        self.sessions.release();
        self.close_orphans(orphans, &held, &standing);
        self.admit_reinstalls().await
    }

    /// Who waits, and whose stream does not stand in the database as it is held here.
    fn doubtful(&self, held: &HashSet<Stream>, standing: &[SessionStanding]) -> Vec<AgentId> {
        let sound = standing.iter().filter(|stream| stream.active);
        let sound: HashSet<Stream> = sound.map(|it| (it.agent_id, it.epoch)).collect();
        let unsound = held.difference(&sound).map(|(agent, _)| *agent);
        self.waiting.all().into_iter().chain(unsound).collect()
    }

    /// The one comparison: who matters here, against what stands in the database.
    async fn reconcile(&self, agents: &[AgentId]) -> Result<(), StoreError> {
        let waiting: Vec<AgentId> = agents
            .iter()
            .copied()
            .filter(|agent| self.waiting.contains(*agent))
            .collect();
        if !waiting.is_empty() {
            let statuses = self.store.agents_statuses(&waiting).await?;
            self.deliver(&waiting, &statuses.into_iter().collect());
        }
        let held = self.sessions.epochs_of(agents);
        if !held.is_empty() {
            for (agent, epoch, displaced) in self.store.sessions_displaced(&held).await? {
                if let Displaced::NotActive { since, .. } = &displaced {
                    let metrics = &self.sessions.metrics;
                    metrics.revocation_seconds.observe(since.as_secs_f64());
                }
                self.sessions.end(agent, epoch, ending(&displaced));
            }
        }
        Ok(())
    }

    fn deliver(&self, waiting: &[AgentId], statuses: &HashMap<AgentId, AgentStatus>) {
        for agent in waiting {
            match statuses.get(agent) {
                Some(AgentStatus::Pending) => {}
                Some(status) => self.waiting.deliver(*agent, Decision::Decided(*status)),
                None => self.waiting.deliver(*agent, Decision::Deleted),
            }
        }
    }

    /// A stream that was opened in the database while its client, or the answer,
    /// was lost. Seen twice, it is nobody's.
    fn close_orphans(
        &self,
        seen: &mut HashSet<Stream>,
        held: &HashSet<Stream>,
        standing: &[SessionStanding],
    ) {
        let standing = standing.iter().map(|it| (it.agent_id, it.epoch));
        let now: HashSet<Stream> = standing.filter(|stream| !held.contains(stream)).collect();
        for (agent_id, epoch) in now.intersection(seen) {
            self.closer.close(SessionClose {
                agent_id: *agent_id,
                epoch: *epoch,
                cause: CloseCause::Lost,
            });
        }
        *seen = now;
    }

    /// Registrations that a token admits once their machine's old agent has been quiet for long enough.
    async fn admit_reinstalls(&self) -> Result<(), StoreError> {
        for agent in self
            .store
            .reinstalls_admit(self.timing.reinstall_quiet)
            .await?
        {
            tracing::info!(agent.id = %agent, "a reinstallation was admitted: the old agent stayed offline");
            self.notice(agent);
        }
        Ok(())
    }

    fn everybody(&self) -> Vec<AgentId> {
        let streams = self.sessions.epochs().into_iter().map(|(agent, _)| agent);
        self.waiting.all().into_iter().chain(streams).collect()
    }
}

fn ending(displaced: &Displaced) -> Ending {
    match displaced {
        Displaced::NotActive { status, .. } => Ending::NotActive(*status),
        Displaced::Deleted => Ending::Deleted,
        Displaced::Replaced => Ending::Replaced,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
