//! What agents say about their settings, on its way into the database, and what they are to run, on its way to them.
//!
//! Agents say it rarely, so a heartbeat costs as much as without this part. Every few seconds one pass stores what they said and
//! reads whether a rule changed. It asks what those are to run that said something since, or all when a rule changed; labels
//! change without a rule, so all are asked about again now and then. Settings are sent to an agent whose received hash differs,
//! and once over a stream: what an agent refuses, or says wrongly, is no loop.
//!
//! **Silence.** An interval that a rule sets becomes the measure of a stream's silence when its agent says that it runs it. Until
//! then the longest of the intervals that it may run counts, so that no change of an interval makes presence flap.

use std::{collections::HashMap, sync::Arc, time::Duration};

use svc_store::{AgentId, SettingsMark, SettingsReport, Store, StoreError, WantedSettings};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Inbox, SessionTable,
    offers::{BATCH, REFRESH, Reports, Said},
};
use crate::{error_chain::chain, periodic::Periodic};

/// What agents have said since the last pass.
pub type SettingsReports = Reports<SettingsReport>;

/// The longest interval that a rule can set (`settings_problem`): it counts until it is known what an agent runs.
const LONGEST: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub struct SettingsPart {
    store: Store,
    sessions: Arc<SessionTable>,
    reports: Arc<SettingsReports>,
    /// Between passes.
    period: Duration,
    /// The interval of agents for which no rule sets one.
    usual: Duration,
    /// The rules for which all agents were asked about, and when that was.
    asked: Option<SettingsMark>,
    asked_at: Instant,
}

/// Takes what an agent says in its Hello or in a report.
pub fn settings_said(
    inbox: &Inbox,
    reports: &SettingsReports,
    agent: AgentId,
    said: SettingsReport,
) {
    if !inbox.takes_settings() {
        inbox.take_settings();
        if !said.running.is_empty() {
            inbox.set_interval(LONGEST);
        }
    }
    reports.put(agent, said, Said::InHello);
}

impl SettingsPart {
    pub fn new(
        store: Store,
        sessions: Arc<SessionTable>,
        reports: Arc<SettingsReports>,
        period: Duration,
        usual: Duration,
    ) -> Self {
        Self {
            store,
            sessions,
            reports,
            period,
            usual,
            asked: None,
            asked_at: Instant::now(),
        }
    }

    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Some(Err(error)) = stop.run_until_cancelled(self.pass()).await {
                let reason = chain(&error);
                tracing::warn!(reason, "settings of agents: the next pass retries");
            }
        }
        Ok(())
    }

    async fn pass(&mut self) -> Result<(), StoreError> {
        let said = self.store_reports().await?;
        let mark = self.store.settings_mark().await?;
        let old = mark.rules > 0 && self.asked_at.elapsed() > REFRESH;
        let all = old || self.asked.as_ref() != Some(&mark);
        let agents = match all {
            true => self.sessions.taking_settings(),
            false => said,
        };
        // Until all are asked about, a failure below leads to another try for all of them.
        self.asked = None;
        self.send(&agents).await?;
        self.asked = Some(mark);
        if all {
            self.asked_at = Instant::now();
        }
        Ok(())
    }

    /// Returns the agents that have said something.
    async fn store_reports(&self) -> Result<Vec<AgentId>, StoreError> {
        let mut taken = self.reports.take();
        taken.retain(|(agent, ..)| self.sessions.lives_here(*agent));
        for batch in taken.chunks(BATCH) {
            let row = |(agent, report, _): &(_, SettingsReport, _)| (*agent, report.clone());
            let rows: Vec<_> = batch.iter().map(row).collect();
            if let Err(error) = self.store.settings_report(&rows).await {
                self.reports.put_back(taken);
                return Err(error);
            }
        }
        Ok(taken.into_iter().map(|(agent, ..)| agent).collect())
    }

    /// Agents with the same settings share them.
    async fn send(&self, agents: &[AgentId]) -> Result<(), StoreError> {
        let mut known = HashMap::<Vec<u8>, Arc<WantedSettings>>::new();
        for batch in agents.chunks(BATCH) {
            for wanted in self.store.settings_wanted(batch).await? {
                let Some(inbox) = self.sessions.inbox(wanted.agent_id) else {
                    continue;
                };
                inbox.set_interval(self.interval(&wanted, inbox.interval()));
                if wanted.due {
                    let shared = known.entry(wanted.hash.clone());
                    let shared = shared.or_insert_with(|| Arc::new(wanted));
                    if inbox.settings(shared) {
                        self.sessions.metrics.settings_sent.inc();
                    }
                }
            }
        }
        Ok(())
    }

    /// How often the agent may report at the least.
    fn interval(&self, wanted: &WantedSettings, before: Option<Duration>) -> Duration {
        let ruled = wanted
            .settings
            .interval
            .filter(|_| !wanted.refuses_interval);
        let ruled = ruled.map_or(self.usual, |seconds| Duration::from_secs(seconds.into()));
        match wanted.runs {
            true => ruled,
            false => ruled.max(self.usual).max(before.unwrap_or_default()),
        }
    }
}
