//! Releases of the agent, and their rollouts: what people add, start, stop and look at.
//!
//! The functions of `schema/70_updates.sql` decide what is allowed, and record it with the actor.

use crate::{
    prelude::*,
    values::{
        labels::Labels,
        rollout::{Hours, RolloutState, Stage, UpdateStep},
    },
};

/// How many agents the details of a rollout show.
const AGENTS_SHOWN: i64 = 200;

/// A manifest whose signature the caller has verified.
#[derive(Debug)]
pub struct NewRelease<'a> {
    pub serial: i64,
    pub version: &'a str,
    pub platforms: &'a [&'a str],
    /// Its bytes as they were signed.
    pub manifest: &'a [u8],
    pub signature: &'a [u8],
}

#[derive(Debug)]
pub struct NewRollout<'a> {
    pub serial: i64,
    /// Without labels: all hosts.
    pub selector: &'a Labels,
    pub stages: &'a [Stage],
    pub soak: std::time::Duration,
    pub hours: Hours,
    /// The release that it takes back.
    pub undoes: Option<i64>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct ReleaseRecord {
        pub serial: i64,
        pub version: String,
        pub platforms: Vec<String>,
        pub added_at: Timestamp,
        pub added_by: String,
        /// Of its rollout, if it has one.
        pub state: Option<RolloutState>,
    }
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct RolloutRecord {
        pub serial: i64,
        pub version: String,
        pub selector: Labels,
        pub stages: Vec<Stage>,
        pub soak_seconds: i32,
        pub hours: Hours,
        pub undoes: Option<i64>,
        pub state: RolloutState,
        /// From 0.
        pub stage: i32,
        pub stage_since: Timestamp,
        pub reason: String,
        pub created_at: Timestamp,
        pub created_by: String,
        /// Agents that were offered the release, and what has become of them.
        pub offered: i64,
        pub downloading: i64,
        pub staged: i64,
        pub trying: i64,
        pub approved: i64,
        pub refused: i64,
        pub unable: i64,
        /// Hosts that are left out.
        pub skipped: i64,
    }
}

record! {
    /// What a rollout would reach.
    #[derive(Debug, Clone)]
    pub struct RolloutPreview {
        pub version: String,
        /// Hosts with the labels.
        pub hosts: i64,
        /// Those of them that run this version already.
        pub current: i64,
        /// Those of them whose agents take updates, on a platform that the release has.
        pub able: i64,
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct RolloutDetail {
    #[serde(flatten)]
    pub rollout: RolloutRecord,
    /// Those that need a person first.
    pub agents: Vec<RolloutAgent>,
}

record! {
    /// An agent that was offered the release.
    #[derive(Debug, Clone, Serialize)]
    pub struct RolloutAgent {
        pub agent_id: AgentId,
        pub host_id: HostId,
        pub hostname: String,
        /// The release that the step is about; 0 before the first.
        pub serial: i64,
        pub version: String,
        pub step: UpdateStep,
        pub since: Timestamp,
        pub online: bool,
        pub reason: String,
        pub log_tail: String,
    }
}

const SELECT: &str = "SELECT r.serial, e.version, r.selector, r.stages, r.soak_seconds, r.hours, r.undoes, r.state, r.stage,
                r.stage_since, r.reason, r.created_at, r.created_by, n.offered, n.downloading, n.staged, n.trying, n.approved, n.refused, n.unable,
                (SELECT count(*) FROM rollout_skips k WHERE k.serial = r.serial) AS skipped
           FROM rollouts r JOIN agent_releases e ON e.serial = r.serial
          CROSS JOIN LATERAL (
                SELECT count(*) AS offered,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'downloading') AS downloading,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'staged') AS staged,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'trying') AS trying,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'approved') AS approved,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'refused') AS refused,
                       count(*) FILTER (WHERE u.serial = r.serial AND u.step = 'unable') AS unable
                  FROM agent_updates u WHERE u.offered_serial = r.serial) n";

/// How far an agent is with its update; no row if it has never said anything of updates.
pub(super) const OF_AGENT: &str = "
    SELECT a.id AS agent_id, a.host_id, h.hostname, s.presence = 'online' AS online, u.serial, u.version, u.step, u.since, u.reason, u.log_tail
      FROM agent_updates u
      JOIN agents a ON a.id = u.agent_id
      JOIN hosts h ON h.id = a.host_id
      JOIN agent_state s ON s.agent_id = a.id
     WHERE u.agent_id = $1";

impl Store {
    /// Adds a release. The same one may be added again; another one of its serial is refused.
    pub async fn release_add(&self, release: &NewRelease<'_>, actor: &str) -> Result<()> {
        let sql = "-- release_add\nSELECT add_agent_release($1, $2, $3, $4, $5, $6)";
        let params = params![
            release.serial,
            release.version,
            release.platforms,
            release.manifest,
            release.signature,
            actor
        ];
        let rows = self.call("release_add", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// The newest first.
    pub async fn releases_list(&self, limit: u32) -> Result<Page<ReleaseRecord>> {
        let sql = "-- releases_list
            SELECT e.serial, e.version, e.platforms, e.added_at, e.added_by, r.state
              FROM agent_releases e LEFT JOIN rollouts r ON r.serial = e.serial
             ORDER BY e.serial DESC LIMIT $1";
        self.read_page("releases_list", Auth, sql, &[], limit).await
    }

    pub async fn rollout_start(&self, rollout: &NewRollout<'_>, actor: &str) -> Result<()> {
        let sql = "-- rollout_start\nSELECT start_rollout($1, $2, $3, $4, $5, $6, $7)";
        let stages: Vec<String> = rollout.stages.iter().map(Stage::to_string).collect();
        let soak = i32::try_from(rollout.soak.as_secs()).unwrap_or(i32::MAX);
        let selector = Json(rollout.selector);
        let hours = rollout.hours.to_string();
        let params = params![
            rollout.serial,
            selector,
            stages,
            soak,
            hours,
            rollout.undoes,
            actor
        ];
        let rows = self.call("rollout_start", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Pauses a rollout, or resumes it in its stage.
    pub async fn rollout_set(
        &self,
        serial: i64,
        running: bool,
        actor: &str,
        reason: &str,
    ) -> Result<()> {
        let sql = "-- rollout_set\nSELECT set_rollout($1, $2, $3, $4)";
        let state = match running {
            true => RolloutState::Running,
            false => RolloutState::Paused,
        };
        let params = params![serial, state.as_str(), actor, reason];
        let rows = self.call("rollout_set", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Leaves a host out of a rollout.
    pub async fn rollout_skip(
        &self,
        serial: i64,
        host: HostId,
        actor: &str,
        reason: &str,
    ) -> Result<()> {
        let sql = "-- rollout_skip\nSELECT skip_host($1, $2, $3, $4)";
        let params = params![serial, host.0, actor, reason];
        let rows = self.call("rollout_skip", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Takes a release back: stops its rollout and starts that of `to`, a newer release of an older version, for all agents
    /// that have had it, at once and at any hour.
    pub async fn rollout_back(
        &self,
        serial: i64,
        to: i64,
        actor: &str,
        reason: &str,
    ) -> Result<()> {
        let pause = "-- rollout_back
            SELECT set_rollout($1, 'paused', $2, concat_ws(': ', 'taken back by release ' || $3::text, nullif($4::text, '')))
             WHERE NOT EXISTS (SELECT FROM rollouts WHERE serial = $1 AND state = 'paused')";
        let start = "-- rollout_back
            SELECT start_rollout($2, selector, '{100%}', 0, '', $1, $3, $4) FROM rollouts WHERE serial = $1";
        let text = to.to_string();
        self.run("rollout_back", Auth, async |tx: Tx| {
            let params = params![serial, actor, text, reason];
            tx.execute(pause, &params).await?;
            let params = params![serial, to, actor, reason];
            tx.execute(start, &params).await.map(drop)
        })
        .await
    }

    /// How many hosts a rollout with this selector would be about, and how many of them it would reach; none if there is no
    /// such release. `rollout_members` decides once there is a rollout.
    pub async fn rollout_preview(
        &self,
        serial: i64,
        selector: &Labels,
    ) -> Result<Option<RolloutPreview>> {
        let sql = "-- rollout_preview
            SELECT e.version, count(h.id) AS hosts, count(*) FILTER (WHERE a.version = e.version) AS current,
                   count(*) FILTER (WHERE a.version <> e.version AND u.serial < e.serial AND u.platform = ANY (e.platforms)
                                      AND NOT (u.serial = 0 AND u.step = 'unable')) AS able
              FROM agent_releases e
              LEFT JOIN hosts h ON h.labels @> $2 AND h.retired_at IS NULL
              LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
              LEFT JOIN agent_updates u ON u.agent_id = a.id
             WHERE e.serial = $1 GROUP BY e.serial";
        let selector = Json(selector);
        let params = params![serial, selector];
        self.read_first("rollout_preview", Auth, sql, &params).await
    }

    /// How far an agent is with its update; none if it has never said anything of updates.
    pub async fn agent_update(&self, agent: AgentId) -> Result<Option<RolloutAgent>> {
        let sql = format!("-- agent_update{OF_AGENT}");
        let params = params![agent.0];
        self.read_first("agent_update", Auth, &sql, &params).await
    }

    /// The newest first.
    pub async fn rollouts_list(&self, limit: u32) -> Result<Page<RolloutRecord>> {
        let sql = format!("-- rollouts_list\n{SELECT} ORDER BY r.serial DESC LIMIT $1");
        self.read_page("rollouts_list", Auth, &sql, &[], limit)
            .await
    }

    pub async fn rollout_show(&self, serial: i64) -> Result<Option<RolloutDetail>> {
        let sql = format!("-- rollout_show\n{SELECT} WHERE r.serial = $1");
        let params = params![serial];
        let found = self.read_first("rollout_show", Auth, &sql, &params);
        let Some(rollout) = found.await? else {
            return Ok(None);
        };
        let agents = "-- rollout_show
            SELECT a.id AS agent_id, a.host_id, h.hostname, s.presence = 'online' AS online,
                   u.serial, u.version, CASE WHEN u.serial = $1 THEN u.step ELSE 'none' END AS step, u.since, u.reason, u.log_tail
              FROM agent_updates u
              JOIN agents a ON a.id = u.agent_id
              JOIN hosts h ON h.id = a.host_id
              JOIN agent_state s ON s.agent_id = a.id
             WHERE u.offered_serial = $1
             ORDER BY u.serial = $1 AND u.step IN ('refused', 'unable') DESC, s.presence = 'offline' DESC,
                      u.step = 'approved', h.hostname, a.id LIMIT $2";
        let params = params![serial, AGENTS_SHOWN];
        let agents = self.read_all("rollout_show", Auth, agents, &params);
        Ok(Some(RolloutDetail {
            rollout,
            agents: agents.await?,
        }))
    }
}
