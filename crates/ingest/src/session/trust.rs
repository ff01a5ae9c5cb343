//! What agents say they trust, on its way into the database, and the list of trust anchors, on its way to agents.
//!
//! Every few seconds one pass stores what agents said since, reads the list if it has changed, and asks who is behind: of the
//! agents that said something, and of all when the list is new. An agent is told of a list once a stream, whatever it says then.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use svc_store::{AgentId, Store, StoreError, TrustList, TrustReport};
use tokio_util::sync::CancellationToken;

use super::SessionTable;
use crate::{error_chain::chain, periodic::Periodic, sync::lock};

/// The agents of one statement.
const BATCH: usize = 1000;

/// What agents have said since the last pass: at most one word of each, the newest. Bounded by the number of agents that have a
/// stream here. `None`: a Hello that says nothing of trust, which matters only where there are anchors.
#[derive(Debug, Default)]
pub struct TrustReports {
    waiting: Mutex<HashMap<AgentId, Option<TrustReport>>>,
    has_anchors: AtomicBool,
}

impl TrustReports {
    pub fn put(&self, agent: AgentId, report: Option<TrustReport>) {
        if report.is_some() || self.has_anchors.load(Ordering::Relaxed) {
            lock(&self.waiting).insert(agent, report);
        }
    }

    fn take(&self) -> Vec<(AgentId, Option<TrustReport>)> {
        mem::take(&mut *lock(&self.waiting)).into_iter().collect()
    }

    /// What was said meanwhile is newer.
    fn put_back(&self, taken: Vec<(AgentId, Option<TrustReport>)>) {
        let mut waiting = lock(&self.waiting);
        for (agent, report) in taken {
            waiting.entry(agent).or_insert(report);
        }
    }
}

#[derive(Debug)]
pub struct TrustPass {
    store: Store,
    sessions: Arc<SessionTable>,
    reports: Arc<TrustReports>,
    period: Duration,
    list: Arc<TrustList>,
    /// The version of the list of which all agents were told.
    told: i64,
}

impl TrustPass {
    pub fn new(
        store: Store,
        sessions: Arc<SessionTable>,
        reports: Arc<TrustReports>,
        period: Duration,
    ) -> Self {
        Self {
            store,
            sessions,
            reports,
            period,
            list: Arc::default(),
            told: 0,
        }
    }

    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Some(Err(error)) = stop.run_until_cancelled(self.pass()).await {
                let reason = chain(&error);
                tracing::warn!(reason, "the trust of agents: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&mut self) -> Result<(), StoreError> {
        if let Some(list) = self.store.trust_list(self.list.version).await? {
            self.list = Arc::new(list);
            self.reports.has_anchors.store(true, Ordering::Relaxed);
        }
        let mut taken = self.reports.take();
        taken.retain(|(agent, ..)| self.sessions.lives_here(*agent));
        if let Err(error) = self.settle(&taken).await {
            self.reports.put_back(taken);
            return Err(error);
        }
        self.told = self.list.version;
        Ok(())
    }

    async fn settle(&self, said: &[(AgentId, Option<TrustReport>)]) -> Result<(), StoreError> {
        for batch in said.chunks(BATCH) {
            self.store.trust_report(batch).await?;
        }
        let agents: Vec<AgentId> = match self.told == self.list.version {
            _ if self.list.version == 0 => return Ok(()),
            true => said.iter().map(|(agent, _)| *agent).collect(),
            false => self.sessions.taking_trust(),
        };
        for batch in agents.chunks(BATCH) {
            for agent in self.store.trust_behind(batch).await? {
                self.sessions.announce(agent, &self.list);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_newest_word_stays_and_silence_costs_nothing_where_there_are_no_anchors() {
        let (reports, agent) = (TrustReports::default(), AgentId(Uuid::nil()));
        let said = |problem: &str| {
            Some(TrustReport {
                anchors: Vec::new(),
                problem: problem.into(),
            })
        };
        reports.put(agent, None);
        assert_eq!(reports.take(), []);
        reports.put(agent, said("old"));
        let taken = reports.take();
        reports.put(agent, said("new"));
        reports.put_back(taken);
        assert_eq!(reports.take(), [(agent, said("new"))]);
        reports.has_anchors.store(true, Ordering::Relaxed);
        reports.put(agent, None);
        assert_eq!(reports.take(), [(agent, None)]);
    }
}
