//! What agents say about their updates, on its way into the database, and the offers of releases, on their way to agents.
//!
//! A report says nothing of updates unless something changed, so a heartbeat costs as much as without this part. Every few
//! seconds one pass stores what agents said, reads the rollouts that are open, and asks for offers: for the agents whose
//! streams were opened since, and for all that take offers when a rollout began, advanced, or came into its hours.
//!
//! Any number of instances do this, each for its own streams. Which agent is offered what is decided by the database.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_store::{AgentId, OpenRollout, Store, StoreError, UpdateReport};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Keys, Offer, SessionTable};
use crate::{clock::DatabaseClock, error_chain::chain, periodic::Periodic, sync::lock};

/// The agents of one statement.
pub(super) const BATCH: usize = 1000;

/// Labels of hosts change without a change of any rollout, so all agents are asked about again after this time.
pub(super) const REFRESH: Duration = Duration::from_mins(5);

/// What agents have said since the last pass: at most one state for each agent, the newest. Bounded by the number of agents that
/// have a stream here: what an agent says again replaces what it said.
#[derive(Debug)]
pub struct Reports<T>(Mutex<HashMap<AgentId, (T, Said)>>);

pub type UpdateReports = Reports<UpdateReport>;

impl<T> Default for Reports<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// When an agent said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    /// It knows what it was offered.
    InReport,
    /// It may have to be offered something.
    InHello,
}

impl<T> Reports<T> {
    pub fn put(&self, agent: AgentId, report: T, said: Said) {
        let mut waiting = lock(&self.0);
        let before = waiting.get(&agent).map_or(said, |(_, before)| *before);
        waiting.insert(agent, (report, said.max(before)));
    }

    pub(super) fn take(&self) -> Vec<(AgentId, T, Said)> {
        let taken = mem::take(&mut *lock(&self.0));
        let flat = |(agent, (report, said))| (agent, report, said);
        taken.into_iter().map(flat).collect()
    }

    /// What was said meanwhile is newer.
    pub(super) fn put_back(&self, taken: Vec<(AgentId, T, Said)>) {
        let mut waiting = lock(&self.0);
        for (agent, report, said) in taken {
            let (_, newer) = waiting.entry(agent).or_insert((report, said));
            *newer = said.max(*newer);
        }
    }
}

#[derive(Debug)]
pub struct Offers {
    store: Store,
    sessions: Arc<SessionTable>,
    reports: Arc<UpdateReports>,
    keys: Keys,
    clock: DatabaseClock,
    period: Duration,
    /// The rollouts for which all agents were asked about, without their manifests, and when that was.
    asked: Vec<(i64, i32, i64)>,
    asked_at: Instant,
}

impl Offers {
    pub fn new(
        store: Store,
        sessions: Arc<SessionTable>,
        reports: Arc<UpdateReports>,
        keys: Keys,
        clock: DatabaseClock,
        period: Duration,
    ) -> Self {
        Self {
            store,
            sessions,
            reports,
            keys,
            clock,
            period,
            asked: Vec::new(),
            asked_at: Instant::now(),
        }
    }

    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Some(Err(error)) = stop.run_until_cancelled(self.pass()).await {
                let reason = chain(&error);
                tracing::warn!(reason, "updates of agents: the next pass retries");
            }
            let keys = self.keys.pass(self.clock.now());
            if let Some(Err(error)) = stop.run_until_cancelled(keys).await {
                let reason = chain(&error);
                tracing::warn!(reason, "new keys of agents: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&mut self) -> Result<(), StoreError> {
        let newcomers = self.store_reports().await?;
        let now = self.clock.now();
        let mut open = self.store.rollouts_open().await?;
        open.retain(|rollout| rollout.hours.contain(now));
        let mark: Vec<_> = open.iter().map(mark).collect();
        let all = mark != self.asked || self.asked_at.elapsed() > REFRESH;
        if open.is_empty() {
            self.asked = mark;
            return Ok(());
        }
        let agents = match all {
            true => self.sessions.taking_offers(),
            false => newcomers,
        };
        // Until all are asked about, a failure below leads to another try for all of them.
        self.asked.clear();
        self.offer(&open, &agents).await?;
        self.asked = mark;
        if all {
            self.asked_at = Instant::now();
        }
        Ok(())
    }

    /// Returns the agents that have opened a stream.
    async fn store_reports(&self) -> Result<Vec<AgentId>, StoreError> {
        let mut taken = self.reports.take();
        taken.retain(|(agent, ..)| self.sessions.lives_here(*agent));
        let mut newcomers = Vec::new();
        for (number, batch) in taken.chunks(BATCH).enumerate() {
            let rows: Vec<_> = batch
                .iter()
                .map(|(agent, report, _)| (*agent, report.clone()))
                .collect();
            if let Err(error) = self.store.updates_report(&rows).await {
                // The newcomers of the batches before are among them, because they have no offer yet.
                let hello = |(_, _, said): &&(_, _, Said)| *said == Said::InHello;
                let stored = taken[..number * BATCH].iter().filter(hello);
                let rest = taken[number * BATCH..].iter();
                self.reports.put_back(stored.chain(rest).cloned().collect());
                return Err(error);
            }
            let hello = batch.iter().filter(|(_, _, said)| *said == Said::InHello);
            newcomers.extend(hello.map(|(agent, ..)| *agent));
        }
        Ok(newcomers)
    }

    async fn offer(&self, open: &[OpenRollout], agents: &[AgentId]) -> Result<(), StoreError> {
        let serials: Vec<i64> = open.iter().map(|rollout| rollout.serial).collect();
        let offer = |rollout: &OpenRollout| {
            let (manifest, signature) = (rollout.manifest.clone(), rollout.signature.clone());
            let offer = Offer {
                manifest,
                signature,
            };
            (rollout.serial, Arc::new(offer))
        };
        let offers: HashMap<i64, Arc<Offer>> = open.iter().map(offer).collect();
        for batch in agents.chunks(BATCH) {
            for (agent, serial) in self.store.updates_offer(batch, &serials).await? {
                if let Some(offer) = offers.get(&serial) {
                    self.sessions.offer(agent, offer);
                }
            }
        }
        Ok(())
    }
}

fn mark(rollout: &OpenRollout) -> (i64, i32, i64) {
    (rollout.serial, rollout.threshold, rollout.skips)
}

#[cfg(test)]
mod tests {
    use svc_store::UpdateStep;
    use uuid::Uuid;

    use super::*;

    fn report(serial: i64) -> UpdateReport {
        UpdateReport {
            step: UpdateStep::None,
            serial,
            version: String::new(),
            platform: "linux/x86_64".into(),
            reason: String::new(),
            log_tail: String::new(),
        }
    }

    #[test]
    fn the_newest_word_stays_and_a_hello_is_not_forgotten() {
        let (reports, agent) = (UpdateReports::default(), AgentId(Uuid::nil()));
        reports.put(agent, report(1), Said::InHello);
        reports.put(agent, report(2), Said::InReport);
        let taken = reports.take();
        assert_eq!(taken, [(agent, report(2), Said::InHello)]);
        reports.put(agent, report(3), Said::InReport);
        reports.put_back(taken);
        assert_eq!(reports.take(), [(agent, report(3), Said::InHello)]);
        assert_eq!(reports.take(), []);
    }
}
