//! The sessions of this instance: at most one for each agent, the newest.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use svc_pipeline::{consumer::Streams, queue::Committed};
use svc_store::{AgentId, CellRecord, StoredSession, TrustList, Watermark};

use super::{EndReason, Inbox, NextKeys, Offer, PendingReport, StoredKey};
use crate::{sync::lock, telemetry::SessionMetrics};

/// One session: its agent, and the epoch that the database gave it. A newer session of the same agent has
/// a higher epoch, on whichever instance it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    pub agent: AgentId,
    pub epoch: i64,
}

impl SessionKey {
    pub fn of(stored: &StoredSession) -> Self {
        Self {
            agent: stored.agent_id,
            epoch: stored.epoch,
        }
    }
}

/// A heartbeat stream, as the rest of the instance knows it.
#[derive(Clone, Debug)]
pub struct Session {
    pub key: SessionKey,
    /// When its JWT is to be renewed.
    pub renew_at: Timestamp,
    pub inbox: Arc<Inbox>,
}

/// The table keeps a clock of its own, in milliseconds, which stands still while the process does. After
/// the process was suspended for a minute, no client counts as silent.
#[derive(Debug, Default)]
pub struct SessionTable {
    sessions: Mutex<HashMap<AgentId, Session>>,
    clock: AtomicU64,
    /// At least one stream holds an acknowledgement back, because the database view was not fresh.
    acks_withheld: AtomicBool,
    /// Keys that agents announced and that are to be stored.
    pub next_keys: NextKeys,
    pub metrics: SessionMetrics,
}

impl SessionTable {
    pub fn new(metrics: SessionMetrics) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// Adds a session. The older session of the same agent ends, whichever of the two is added first.
    pub fn insert(&self, session: Session) {
        session.inbox.message_arrived(self.now());
        let mut sessions = lock(&self.sessions);
        match sessions.get(&session.key.agent) {
            Some(newer) if newer.key.epoch > session.key.epoch => {
                session.inbox.end(EndReason::Replaced);
            }
            _ => {
                if let Some(older) = sessions.insert(session.key.agent, session) {
                    older.inbox.end(EndReason::Replaced);
                }
            }
        }
    }

    /// Removes a session, unless a newer one has taken its place.
    pub fn remove(&self, key: SessionKey) {
        let mut sessions = lock(&self.sessions);
        let known = sessions.get(&key.agent);
        if known.is_some_and(|known| known.key == key) {
            sessions.remove(&key.agent);
        }
    }

    /// Ends a session, but not a newer one that has taken its place.
    pub fn end(&self, key: SessionKey, reason: EndReason) {
        let sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(&key.agent).filter(|known| known.key == key) {
            session.inbox.end(reason);
        }
    }

    pub fn renewed(&self, key: SessionKey, renew_at: Timestamp) {
        let mut sessions = lock(&self.sessions);
        let known = sessions.get_mut(&key.agent);
        if let Some(session) = known.filter(|known| known.key == key) {
            session.renew_at = renew_at;
        }
    }

    pub fn acked(&self, watermarks: &[Watermark]) {
        let sessions = lock(&self.sessions);
        for watermark in watermarks {
            if let Some(session) = sessions.get(&watermark.agent_id) {
                session.inbox.acked(watermark.acked_seq);
            }
        }
    }

    pub fn offer(&self, agent: AgentId, offer: &Arc<Offer>) {
        if let Some(session) = lock(&self.sessions).get(&agent) {
            session.inbox.offer(offer.clone());
        }
    }

    pub fn ask_for_key(&self, agent: AgentId) {
        if let Some(session) = lock(&self.sessions).get(&agent) {
            session.inbox.ask_for_key();
        }
    }

    pub fn key_stored(&self, key: SessionKey, stored: StoredKey) {
        let sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(&key.agent).filter(|known| known.key == key) {
            session.inbox.key_stored(stored);
        }
    }

    pub fn has(&self, key: SessionKey) -> bool {
        let sessions = lock(&self.sessions);
        sessions
            .get(&key.agent)
            .is_some_and(|known| known.key == key)
    }

    /// Whether the agent has a stream here. What it said on a stream that has ended is older than what it says on its next one,
    /// which may be on another instance.
    pub fn lives_here(&self, agent: AgentId) -> bool {
        lock(&self.sessions).contains_key(&agent)
    }

    /// Asks an agent to move to another cell. Returns whether it has a stream here and was not asked on it before.
    pub fn move_to(&self, agent: AgentId, cell: &Arc<CellRecord>) -> bool {
        let sessions = lock(&self.sessions);
        let session = sessions.get(&agent);
        session.is_some_and(|session| session.inbox.move_to(cell))
    }

    /// The agents that say how far their updates are.
    pub fn taking_offers(&self) -> Vec<AgentId> {
        let sessions = lock(&self.sessions);
        let taking = sessions
            .values()
            .filter(|session| session.inbox.takes_offers());
        taking.map(|session| session.key.agent).collect()
    }

    /// The agents that say which settings they run.
    pub fn taking_settings(&self) -> Vec<AgentId> {
        let sessions = lock(&self.sessions);
        let taking = sessions
            .values()
            .filter(|session| session.inbox.takes_settings());
        taking.map(|session| session.key.agent).collect()
    }

    pub fn inbox(&self, agent: AgentId) -> Option<Arc<Inbox>> {
        let sessions = lock(&self.sessions);
        sessions.get(&agent).map(|session| session.inbox.clone())
    }

    pub fn announce(&self, agent: AgentId, list: &Arc<TrustList>) {
        if let Some(session) = lock(&self.sessions).get(&agent) {
            session.inbox.announce(list);
        }
    }

    /// The agents that say what they trust.
    pub fn taking_trust(&self) -> Vec<AgentId> {
        let sessions = lock(&self.sessions);
        let taking = sessions
            .values()
            .filter(|session| session.inbox.takes_trust());
        taking.map(|session| session.key.agent).collect()
    }

    /// Sessions whose oldest pending report has waited for longer than this, with that report.
    pub fn waiting(&self, longer_than: Duration) -> Vec<(Session, PendingReport)> {
        let sessions = lock(&self.sessions);
        let late = sessions.values().filter_map(|session| {
            let pending = session.inbox.oldest_pending()?;
            (pending.since.elapsed() > longer_than).then(|| (session.clone(), pending))
        });
        late.collect()
    }

    /// When the stream of this session last brought a message after Hello, on the database's clock.
    pub fn heard_at(&self, key: SessionKey) -> Option<Timestamp> {
        let sessions = lock(&self.sessions);
        let session = sessions.get(&key.agent).filter(|known| known.key == key)?;
        session.inbox.heard_at()
    }

    pub fn contains(&self, agent: AgentId) -> bool {
        lock(&self.sessions).contains_key(&agent)
    }

    pub fn all(&self) -> Vec<Session> {
        lock(&self.sessions).values().cloned().collect()
    }

    pub fn keys(&self) -> Vec<SessionKey> {
        let sessions = lock(&self.sessions);
        sessions.values().map(|session| session.key).collect()
    }

    /// Agents and epochs of all sessions, for the database to compare.
    pub fn epochs(&self) -> Vec<(AgentId, i64)> {
        let keys = self.keys().into_iter();
        keys.map(|key| (key.agent, key.epoch)).collect()
    }

    /// Agents and epochs of the sessions that `agents` have here.
    pub fn epochs_of(&self, agents: &[AgentId]) -> Vec<(AgentId, i64)> {
        let sessions = lock(&self.sessions);
        let epoch = |agent: &AgentId| Some((*agent, sessions.get(agent)?.key.epoch));
        agents.iter().filter_map(epoch).collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.sessions).len()
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.sessions).is_empty()
    }

    /// Notes that a stream holds an acknowledgement back until the database view is fresh again.
    pub fn withhold_acks(&self) {
        self.acks_withheld.store(true, Ordering::Relaxed);
    }

    /// Lets the streams send the acknowledgements that they held back.
    pub fn release_acks(&self) {
        if self.acks_withheld.swap(false, Ordering::Relaxed) {
            let sessions = lock(&self.sessions);
            sessions.values().for_each(|session| session.inbox.nudge());
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.clock.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Streams for SessionTable {
    /// Dead letters go first, because the acknowledgement that covers them names them.
    fn committed(&self, committed: &Committed) {
        let sessions = lock(&self.sessions);
        for letter in &committed.dead_letters {
            if let Some(session) = sessions.get(&letter.agent_id) {
                session.inbox.refused(&letter.seqs);
            }
        }
        drop(sessions);
        self.acked(&committed.watermarks);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn session(epoch: i64) -> Session {
        let agent = AgentId(Uuid::nil());
        Session {
            key: SessionKey { agent, epoch },
            renew_at: Timestamp::UNIX_EPOCH,
            inbox: Arc::default(),
        }
    }

    #[test]
    fn the_newest_epoch_wins_in_whatever_order_sessions_are_added() {
        for epochs in [[1, 2], [2, 1]] {
            let table = SessionTable::default();
            let sessions = epochs.map(session);
            for session in &sessions {
                table.insert(session.clone());
            }
            for session in &sessions {
                let expected = (session.key.epoch == 1).then_some(EndReason::Replaced);
                assert_eq!(session.inbox.take().end, expected);
            }
            assert_eq!(table.epochs(), [(sessions[0].key.agent, 2)]);
        }
    }

    #[test]
    fn removing_an_old_session_leaves_the_newer_one() {
        let table = SessionTable::default();
        let (old, new) = (session(1), session(2));
        table.insert(old.clone());
        table.insert(new.clone());
        table.remove(old.key);
        assert_eq!(table.len(), 1);
        table.remove(new.key);
        assert!(table.is_empty());
    }

    #[test]
    fn ending_an_old_session_leaves_the_newer_one() {
        let table = SessionTable::default();
        let new = session(2);
        table.insert(new.clone());
        table.end(session(1).key, EndReason::Replaced);
        assert_eq!(new.inbox.take().end, None);
        table.end(new.key, EndReason::Replaced);
        assert_eq!(new.inbox.take().end, Some(EndReason::Replaced));
    }
}
