//! Settings of agents as the service sees them: what agents say, and what they are to run.
//!
//! What the rules come to is decided by `settings_effective` (`schema/75_settings.sql`) alone.

use crate::{
    prelude::*,
    values::agent_settings::{AgentSettings, RefusedSetting},
};

/// What an agent says about its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsReport {
    /// Empty: its own configuration alone.
    pub running: Vec<u8>,
    pub received: Vec<u8>,
    pub refused: Vec<RefusedSetting>,
}

record! {
    /// What an agent is to run, compared with what it said last.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WantedSettings {
        pub agent_id: AgentId,
        pub settings: AgentSettings,
        pub hash: Vec<u8>,
        /// Whether it has not received them.
        pub due: bool,
        /// Whether it runs them, but for what it refuses.
        pub runs: bool,
        pub refuses_interval: bool,
    }
}

record! {
    /// What changes whenever a rule changes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SettingsMark {
        pub rules: i64,
        pub mark: String,
    }
}

impl Store {
    /// Stores what agents say, where it is new.
    pub async fn settings_report(&self, reports: &[(AgentId, SettingsReport)]) -> Result<()> {
        let sql = "-- settings_report
            INSERT INTO agent_settings (agent_id, running_hash, received_hash, refused)
            SELECT n.* FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::jsonb[])
                         AS n(agent_id, running_hash, received_hash, refused)
              JOIN agents a ON a.id = n.agent_id
              LEFT JOIN agent_settings o ON o.agent_id = n.agent_id
             WHERE (o.running_hash, o.received_hash, o.refused)
                   IS DISTINCT FROM (n.running_hash, n.received_hash, n.refused)
             ORDER BY n.agent_id
                ON CONFLICT (agent_id) DO UPDATE SET running_hash = excluded.running_hash,
                   received_hash = excluded.received_hash, refused = excluded.refused, since = clock_timestamp()";
        let columns = Arrays::default()
            .column(reports, |(agent, _)| agent.0)
            .column(reports, |(_, report)| report.running.clone())
            .column(reports, |(_, report)| report.received.clone())
            .column(reports, |(_, report)| Json(report.refused.clone()));
        let params = columns.params();
        let rows = self.call("settings_report", Watch, sql, &params);
        rows.await.map(drop)
    }

    pub async fn settings_mark(&self) -> Result<SettingsMark> {
        let sql = "-- settings_mark
            SELECT count(*) AS rules, coalesce(md5(string_agg(concat_ws(' ', id, changed_at), ',' ORDER BY id)), '') AS mark
              FROM settings_rules";
        let mark = self.read_first("settings_mark", Watch, sql, &[]).await?;
        let none = || SettingsMark {
            rules: 0,
            mark: String::new(),
        };
        Ok(mark.unwrap_or_else(none))
    }

    /// What these agents are to run, of those that take settings. An agent that has none is not sent that it has none.
    pub async fn settings_wanted(&self, agents: &[AgentId]) -> Result<Vec<WantedSettings>> {
        let sql = "-- settings_wanted
            SELECT e.agent_id, e.settings, e.hash,
                   s.received_hash <> e.hash AND NOT (e.settings = '{}' AND s.received_hash = '') AS due,
                   s.running_hash = e.hash OR (e.settings = '{}' AND s.running_hash = '') AS runs,
                   s.refused @> '[{\"field\": \"interval\"}]' AS refuses_interval
              FROM settings_effective($1) e JOIN agent_settings s ON s.agent_id = e.agent_id";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = params![agents];
        self.read_all("settings_wanted", Watch, sql, &params).await
    }
}
