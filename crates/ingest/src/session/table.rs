//! The streams that this instance holds: at most one for each agent, the newest.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use svc_store::{AgentId, Watermark};

use super::{Awaited, Ending, Inbox};
use crate::{queue::Committed, telemetry::SessionMetrics};

/// A stream, as the rest of the instance knows it.
#[derive(Clone, Debug)]
pub struct Held {
    pub agent: AgentId,
    pub epoch: i64,
    /// When its JWT ends.
    pub jwt_expires_at: Timestamp,
    pub inbox: Arc<Inbox>,
}

/// The table keeps a time of its own, in milliseconds, which stands still while
/// the process does: a process that was stopped for a minute finds nobody silent.
#[derive(Debug, Default)]
pub struct Sessions {
    held: Mutex<HashMap<AgentId, Held>>,
    time: AtomicU64,
    /// Some stream holds an acknowledgement back, because the database was out of sight.
    withheld: AtomicBool,
    pub metrics: SessionMetrics,
}

impl Sessions {
    pub fn new(metrics: SessionMetrics) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// Takes a stream in. An older one of the same agent is told that it was replaced.
    pub fn insert(&self, session: Held) {
        session.inbox.hear(self.now());
        let mut held = self.held();
        match held.get(&session.agent) {
            Some(newer) if newer.epoch > session.epoch => session.inbox.end(Ending::Replaced),
            _ => {
                if let Some(older) = held.insert(session.agent, session) {
                    older.inbox.end(Ending::Replaced);
                }
            }
        }
    }

    /// Forgets a stream, unless a newer one has its place.
    pub fn remove(&self, agent: AgentId, epoch: i64) {
        let mut held = self.held();
        if held.get(&agent).is_some_and(|known| known.epoch == epoch) {
            held.remove(&agent);
        }
    }

    /// Ends one stream; a newer one that has come meanwhile is not meant.
    pub fn end(&self, agent: AgentId, epoch: i64, ending: Ending) {
        let held = self.held();
        if let Some(session) = held.get(&agent).filter(|known| known.epoch == epoch) {
            session.inbox.end(ending);
        }
    }

    pub fn renewed(&self, agent: AgentId, epoch: i64, jwt_expires_at: Timestamp) {
        if let Some(session) = self
            .held()
            .get_mut(&agent)
            .filter(|known| known.epoch == epoch)
        {
            session.jwt_expires_at = jwt_expires_at;
        }
    }

    /// Dead letters first: the acknowledgement names them.
    pub fn committed(&self, committed: &Committed) {
        let held = self.held();
        for letter in &committed.dead_letters {
            if let Some(session) = held.get(&letter.agent_id) {
                session.inbox.refused(&letter.seqs);
            }
        }
        drop(held);
        self.acked(&committed.watermarks);
    }

    pub fn acked(&self, watermarks: &[Watermark]) {
        let held = self.held();
        for watermark in watermarks {
            if let Some(session) = held.get(&watermark.agent_id) {
                session.inbox.acked(watermark.acked_seq);
            }
        }
    }

    /// The streams that have waited for a commit for longer than this.
    pub fn waiting(&self, longer_than: Duration) -> Vec<(Held, Awaited)> {
        let held = self.held();
        let late = held.values().filter_map(|session| {
            let awaited = session.inbox.awaited()?;
            (awaited.since.elapsed() > longer_than).then(|| (session.clone(), awaited))
        });
        late.collect()
    }

    pub fn contains(&self, agent: AgentId) -> bool {
        self.held().contains_key(&agent)
    }

    pub fn all(&self) -> Vec<Held> {
        self.held().values().cloned().collect()
    }

    /// Agents and epochs, for the database to compare.
    pub fn epochs(&self) -> Vec<(AgentId, i64)> {
        self.held()
            .values()
            .map(|session| (session.agent, session.epoch))
            .collect()
    }

    /// Those of `agents` that are held, with their epochs.
    pub fn epochs_of(&self, agents: &[AgentId]) -> Vec<(AgentId, i64)> {
        let held = self.held();
        agents
            .iter()
            .filter_map(|agent| held.get(agent).map(|session| (*agent, session.epoch)))
            .collect()
    }

    pub fn len(&self) -> usize {
        self.held().len()
    }

    pub fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    pub fn withhold(&self) {
        self.withheld.store(true, Ordering::Relaxed);
    }

    /// Lets the streams say what they held back.
    pub fn release(&self) {
        if self.withheld.swap(false, Ordering::Relaxed) {
            self.held()
                .values()
                .for_each(|session| session.inbox.nudge());
        }
    }

    pub fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    /// Lets the table's time go on.
    pub fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.time.fetch_add(millis, Ordering::Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<AgentId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn session(epoch: i64) -> Held {
        let agent = AgentId(Uuid::nil());
        Held {
            agent,
            epoch,
            jwt_expires_at: Timestamp::UNIX_EPOCH,
            inbox: Arc::default(),
        }
    }

    #[test]
    fn the_newest_epoch_holds_the_place_in_whatever_order_they_come() {
        for epochs in [[1, 2], [2, 1]] {
            let table = Sessions::default();
            let sessions = epochs.map(session);
            sessions
                .iter()
                .cloned()
                .for_each(|session| table.insert(session));
            for session in &sessions {
                let expected = (session.epoch == 1).then_some(Ending::Replaced);
                assert_eq!(session.inbox.take().ending, expected);
            }
            assert_eq!(table.epochs(), [(sessions[0].agent, 2)]);
        }
    }

    #[test]
    fn a_late_end_of_an_old_stream_leaves_the_new_one_in_its_place() {
        let table = Sessions::default();
        let (old, new) = (session(1), session(2));
        table.insert(old.clone());
        table.insert(new.clone());
        table.remove(old.agent, old.epoch);
        assert_eq!(table.len(), 1);
        table.remove(new.agent, new.epoch);
        assert!(table.is_empty());
    }

    #[test]
    fn an_end_that_was_meant_for_an_old_stream_leaves_the_new_one_alone() {
        let table = Sessions::default();
        let new = session(2);
        table.insert(new.clone());
        table.end(new.agent, 1, Ending::Replaced);
        assert_eq!(new.inbox.take().ending, None);
        table.end(new.agent, 2, Ending::Replaced);
        assert_eq!(new.inbox.take().ending, Some(Ending::Replaced));
    }
}
