//! Settings of agents: the rules that people make, what a change costs, and what an agent runs.
//!
//! The functions of `schema/75_settings.sql` decide what is allowed, and record it with the actor.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    prelude::*,
    values::{
        agent_settings::{AgentSettings, RefusedSetting},
        instance_load::{InstanceLoad, reports_room},
        labels::Labels,
    },
};

record! {
    #[derive(Clone, Debug, Serialize)]
    pub struct SettingsRule {
        pub id: i64,
        pub priority: i32,
        pub selector: Labels,
        #[serde(rename = "settings")]
        pub patch: AgentSettings,
        pub share: i32,
        pub created_at: Timestamp,
        pub created_by: String,
        pub changed_at: Timestamp,
        pub changed_by: String,
    }
}

/// A rule as it is to be.
#[derive(Clone, Debug)]
pub struct NewRule {
    pub priority: i32,
    /// Without labels: all hosts.
    pub selector: Labels,
    pub patch: AgentSettings,
    /// Percent.
    pub share: i32,
}

#[derive(Clone, Debug)]
pub enum RuleChange {
    Add(NewRule),
    Change(i64, NewRule),
    Remove(i64),
}

/// How far a change goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// It is only tried.
    Preview,
    /// If the instances have room for the reports that it causes.
    IfRoom,
    Forced,
}

/// What a change of a rule touches and costs.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsCost {
    /// The number of the rule. That of a preview is not kept.
    pub rule: i64,
    /// Hosts for which the rule was in force before, and for which it is after the change.
    pub hosts_before: i64,
    pub hosts: i64,
    /// Reports a second, more than before.
    pub reports: f64,
    /// For how many more reports a second the instances have processors, if they have measured it.
    pub room: Option<f64>,
    pub applied: bool,
}

impl SettingsCost {
    pub fn fits(&self) -> bool {
        self.reports <= 0.0 || self.room.is_none_or(|room| self.reports <= room)
    }
}

impl fmt::Display for SettingsCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after, reports) = (self.hosts_before, self.hosts, self.reports);
        write!(
            f,
            "{after} hosts (now {before}): {reports:+.1} reports a second; "
        )?;
        match self.room {
            Some(room) => write!(f, "the instances have room for {room:.1}"),
            None => f.write_str("no instance has measured how many it has room for"),
        }
    }
}

record! {
    /// What an agent is to run, and what it said last. Hashes are in hexadecimal.
    #[derive(Clone, Debug, Serialize)]
    pub struct AgentSettingsView {
        pub agent_id: AgentId,
        pub settings: AgentSettings,
        rules: Json<BTreeMap<String, i64>>,
        pub hash: String,
        pub running_hash: Option<String>,
        pub received_hash: Option<String>,
        refused: Option<Json<Vec<RefusedSetting>>>,
        pub since: Option<Timestamp>,
    }
}

impl AgentSettingsView {
    /// Name, value, and the rule that sets it.
    pub fn fields(&self) -> Vec<(&'static str, String, i64)> {
        let rule = |name: &str| self.rules.0.get(name).copied().unwrap_or_default();
        let fields = self.settings.fields().into_iter();
        fields
            .map(|(name, value)| (name, value, rule(name)))
            .collect()
    }

    pub fn refused(&self) -> &[RefusedSetting] {
        self.refused.as_ref().map_or(&[], |Json(refused)| refused)
    }

    /// What the agent does with them, as it said last.
    pub fn state(&self) -> &'static str {
        let own = self.settings == AgentSettings::default();
        let is = |said: &str| said == self.hash || (own && said.is_empty());
        match (&self.running_hash, &self.received_hash) {
            (Some(running), _) if is(running) && self.refused().is_empty() => "runs them",
            (Some(running), _) if is(running) => "runs them, but for what it refuses",
            (_, Some(received)) if is(received) => "has received them, and does not run them",
            (Some(_), _) => "runs others, and has not received these",
            (None, _) => "takes no settings",
        }
    }
}

const RULES: &str = "SELECT id, priority, selector, patch, share, created_at, created_by, changed_at, changed_by FROM settings_rules";

/// The highest rule that sets an interval decides, as in `settings_effective`.
const REPORTS: &str = "-- settings_change
    SELECT coalesce(sum(1.0 / seconds - 1.0 / $1::float8), 0)::float8
      FROM (SELECT DISTINCT ON (agent_id) (patch ->> 'interval')::integer AS seconds FROM settings_members(NULL)
             WHERE patch ? 'interval' ORDER BY agent_id, priority DESC, rule DESC) fastest";

const HOSTS: &str =
    "-- settings_change\nSELECT count(*) FROM settings_members(NULL) WHERE rule = $1";

impl Store {
    /// In the order in which they are applied: of two that set a field the later one decides.
    pub async fn settings_rules(&self) -> Result<Vec<SettingsRule>> {
        let sql = format!("-- settings_rules\n{RULES} ORDER BY priority, id");
        self.read_all("settings_rules", Auth, &sql, &[]).await
    }

    pub async fn settings_rule(&self, id: i64) -> Result<Option<SettingsRule>> {
        let sql = format!("-- settings_rule\n{RULES} WHERE id = $1");
        self.read_first("settings_rule", Auth, &sql, &params![id])
            .await
    }

    /// What the agent is to run, which rule set what, and what it says; none if it is unknown.
    pub async fn settings_of(&self, agent: AgentId) -> Result<Option<AgentSettingsView>> {
        let sql = "-- settings_of
            SELECT a.id AS agent_id, e.settings, e.rules, encode(e.hash, 'hex') AS hash,
                   encode(s.running_hash, 'hex') AS running_hash, encode(s.received_hash, 'hex') AS received_hash,
                   s.refused, s.since
              FROM agents a CROSS JOIN LATERAL settings_effective(ARRAY[a.id]) e
              LEFT JOIN agent_settings s ON s.agent_id = a.id
             WHERE a.id = $1";
        let params = params![agent.0];
        self.read_first("settings_of", Auth, sql, &params).await
    }

    /// Changes the rules, unless the change costs more than there is room for. The change is made and then counted, so that
    /// what is counted is what comes to be; one that is not to be is taken back.
    pub async fn settings_change(
        &self,
        change: &RuleChange,
        apply: Apply,
        actor: &str,
        reason: &str,
    ) -> Result<SettingsCost> {
        self.run("settings_change", Auth, async |tx: Tx| {
            let loads = loads(&tx).await?;
            let usual = loads.iter().map(|load| load.heartbeat_seconds);
            let usual = usual.fold(0.0, f64::max);
            let usual = if usual > 0.0 { usual } else { 30.0 };
            let before: f64 = tx.query_value(REPORTS, &params![usual]).await?;
            let known = match change {
                RuleChange::Add(_) => 0,
                RuleChange::Change(id, _) | RuleChange::Remove(id) => *id,
            };
            let hosts_before = tx.query_value(HOSTS, &params![known]).await?;
            tx.batch("SAVEPOINT unchanged").await?;
            let rule = make(&tx, change, actor, reason).await?;
            let after: f64 = tx.query_value(REPORTS, &params![usual]).await?;
            let mut cost = SettingsCost {
                rule,
                hosts_before,
                hosts: tx.query_value(HOSTS, &params![rule]).await?,
                reports: after - before,
                room: reports_room(&loads, before),
                applied: false,
            };
            cost.applied = match apply {
                Apply::Preview => false,
                Apply::IfRoom => cost.fits(),
                Apply::Forced => true,
            };
            if !cost.applied {
                tx.batch("ROLLBACK TO SAVEPOINT unchanged").await?;
            }
            Ok(cost)
        })
        .await
    }
}

async fn make(tx: &Tx, change: &RuleChange, actor: &str, reason: &str) -> Result<i64> {
    let (id, new) = match change {
        RuleChange::Add(new) => (None, new),
        RuleChange::Change(id, new) => (Some(*id), new),
        RuleChange::Remove(id) => {
            let sql = "-- settings_change\nSELECT remove_settings_rule($1, $2, $3)";
            tx.execute(sql, &params![id, actor, reason]).await?;
            return Ok(*id);
        }
    };
    let sql = "-- settings_change\nSELECT set_settings_rule($1, $2, $3, jsonb_strip_nulls($4), $5, $6, $7)";
    let (selector, patch) = (Json(&new.selector), Json(&new.patch));
    let params = params![id, new.priority, selector, patch, new.share, actor, reason];
    tx.query_value(sql, &params).await
}

async fn loads(tx: &Tx) -> Result<Vec<InstanceLoad>> {
    let sql = "-- settings_change
        SELECT load FROM ingest_instances
         WHERE NOT fenced AND stopped_at IS NULL AND expires_at > clock_timestamp() AND load IS NOT NULL";
    let mut loads = Vec::new();
    for row in tx.query(sql, &[]).await? {
        loads.extend(InstanceLoad::deserialize(row.try_get::<_, Value>(0)?));
    }
    Ok(loads)
}
