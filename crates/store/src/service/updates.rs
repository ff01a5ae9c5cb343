//! Updates as the service sees them: what agents say, who is offered what, and the figures by which a rollout advances or halts.
//!
//! Which agents a rollout is about is decided by `rollout_members` (`schema/70_updates.sql`) alone, for offers and figures alike.

use crate::{
    prelude::*,
    service::fleet_gauges::IS_REPORTER,
    values::rollout::{Hours, RolloutState, Stage, UpdateStep},
};

/// What an agent says about its update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateReport {
    pub step: UpdateStep,
    pub serial: i64,
    pub version: String,
    pub platform: String,
    pub reason: String,
    pub log_tail: String,
}

record! {
    /// A rollout that offers its release.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OpenRollout {
        pub serial: i64,
        pub threshold: i32,
        pub skips: i64,
        pub hours: Hours,
        pub manifest: Vec<u8>,
        pub signature: Vec<u8>,
    }
}

record! {
    /// A rollout that is to be judged.
    #[derive(Clone, Debug)]
    pub struct RunningRollout {
        pub serial: i64,
        pub stages: Vec<Stage>,
        pub stage: i32,
        pub hours: Hours,
        /// Whether the stage has lasted for as long as it must.
        pub soaked: bool,
    }
}

record! {
    /// What has become of a rollout so far. Hosts that are skipped are in none of these figures.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RolloutFigures {
        /// Agents that were offered the release, without those that are unable to take it.
        pub offered: i64,
        pub approved: i64,
        pub refused: i64,
        /// Agents that were offered it, have gone offline since, and have stayed so.
        pub dark: i64,
        /// Agents that are online and will be offered it in this stage.
        pub due: i64,
        /// All other active agents that were online when the stage began or are now, and those of them that have gone
        /// offline since and have stayed so.
        pub others: i64,
        pub others_dark: i64,
        /// Whether the presence of agents is not known now: the service itself was away, or an instance is.
        pub in_doubt: bool,
    }
}

/// How a rollout goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStep {
    /// To the next stage, or to the end.
    Advance,
    Halt(String),
}

/// `agent_state` has one row for each agent, so the figures of others read it once. An agent that was offered nothing of this
/// release has the same weather, the same network and the same service as those that were.
const FIGURES: &str = "-- rollout_figures
    WITH members AS MATERIALIZED (
        SELECT m.agent_id, m.place < r.threshold AS reached, r.stage_since, u.step, u.offered_at,
               u.offered_serial = r.serial AS offered, u.serial = r.serial AS ours, s.presence, s.presence_since
          FROM rollouts r CROSS JOIN LATERAL rollout_members(r.serial, NULL) m
          JOIN agent_updates u ON u.agent_id = m.agent_id
          JOIN agent_state s ON s.agent_id = m.agent_id
         WHERE r.serial = $1),
    ours AS (
        SELECT count(*) FILTER (WHERE offered AND NOT (ours AND step = 'unable')) AS offered,
               count(*) FILTER (WHERE offered AND ours AND step = 'approved') AS approved,
               count(*) FILTER (WHERE offered AND ours AND step = 'refused') AS refused,
               count(*) FILTER (WHERE offered AND presence = 'offline' AND presence_since > offered_at
                                  AND presence_since < now() - make_interval(secs => $2)) AS dark,
               count(*) FILTER (WHERE reached AND presence = 'online' AND offered IS NOT TRUE
                                  AND NOT (ours AND step IN ('approved', 'refused', 'unable'))) AS due
          FROM members),
    others AS (
        SELECT count(*) FILTER (WHERE s.presence = 'online' OR s.presence_since > r.stage_since) AS others,
               count(*) FILTER (WHERE s.presence = 'offline' AND s.presence_since > r.stage_since
                                  AND s.presence_since < now() - make_interval(secs => $2)) AS others_dark
          FROM agent_state s
          JOIN rollouts r ON r.serial = $1
          JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
          LEFT JOIN agent_updates u ON u.agent_id = s.agent_id
         WHERE u.offered_serial IS DISTINCT FROM $1)
    SELECT ours.*, others.*,
           EXISTS (SELECT FROM sweep_pause p
                    WHERE p.since <= clock_timestamp() AND clock_timestamp() < p.until + make_interval(secs => $2))
           OR EXISTS (SELECT FROM ingest_instances i
                       WHERE NOT i.swept AND i.stopped_at IS NULL AND (i.fenced OR i.expires_at < now())
                         AND EXISTS (SELECT FROM agent_state s WHERE s.instance_id = i.id)) AS in_doubt
      FROM ours, others";

impl Store {
    /// Stores what agents say, where it is new.
    pub async fn updates_report(&self, reports: &[(AgentId, UpdateReport)]) -> Result<()> {
        let sql = "-- updates_report
            INSERT INTO agent_updates AS u (agent_id, serial, step, version, platform, reason, log_tail)
            SELECT n.* FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
                         AS n(agent_id, serial, step, version, platform, reason, log_tail)
              JOIN agents a ON a.id = n.agent_id
              LEFT JOIN agent_updates o ON o.agent_id = n.agent_id
             WHERE (o.serial, o.step, o.version, o.platform, o.reason, o.log_tail)
                   IS DISTINCT FROM (n.serial, n.step, n.version, n.platform, n.reason, n.log_tail)
             ORDER BY n.agent_id
                ON CONFLICT (agent_id) DO UPDATE SET serial = excluded.serial, step = excluded.step,
                   version = excluded.version, platform = excluded.platform, reason = excluded.reason,
                   log_tail = excluded.log_tail,
                   since = CASE WHEN (u.serial, u.step) = (excluded.serial, excluded.step) THEN u.since ELSE clock_timestamp() END";
        let columns = Arrays::default()
            .column(reports, |(agent, _)| agent.0)
            .column(reports, |(_, report)| report.serial)
            .column(reports, |(_, report)| report.step.as_str())
            .column(reports, |(_, report)| report.version.clone())
            .column(reports, |(_, report)| report.platform.clone())
            .column(reports, |(_, report)| report.reason.clone())
            .column(reports, |(_, report)| report.log_tail.clone());
        let params = columns.params();
        let rows = self.call("updates_report", Watch, sql, &params);
        rows.await.map(drop)
    }

    /// The rollouts that offer their releases, apart from their hours.
    pub async fn rollouts_open(&self) -> Result<Vec<OpenRollout>> {
        let sql = "-- rollouts_open
            SELECT r.serial, r.threshold, r.hours, e.manifest, e.signature,
                   (SELECT count(*) FROM rollout_skips k WHERE k.serial = r.serial) AS skips
              FROM rollouts r JOIN agent_releases e ON e.serial = r.serial
             WHERE r.state IN ('running', 'done') AND r.threshold > 0 ORDER BY r.serial";
        self.read_all("rollouts_open", Watch, sql, &[]).await
    }

    /// Which of these agents are to be offered which of these releases now. Notes that they are.
    pub async fn updates_offer(
        &self,
        agents: &[AgentId],
        serials: &[i64],
    ) -> Result<Vec<(AgentId, i64)>> {
        let sql = "-- updates_offer\nSELECT agent_id, serial FROM updates_offer($1, $2)";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = params![agents, serials];
        let rows = self.call("updates_offer", Watch, sql, &params).await?;
        let offer = |row: &Row| Ok((row.try_get("agent_id")?, row.try_get("serial")?));
        rows.iter().map(offer).collect()
    }

    /// The rollouts that `instance` judges: all that run if it is the reporter, otherwise none.
    pub async fn rollouts_running(&self, instance: Uuid) -> Result<Vec<RunningRollout>> {
        let sql = "-- rollouts_running
            SELECT serial, stages, stage, hours,
                   clock_timestamp() >= stage_since + make_interval(secs => soak_seconds) AS soaked
              FROM rollouts WHERE state = 'running' ORDER BY serial";
        self.run("rollouts_running", Watch, async |tx: Tx| {
            match tx.query_value(IS_REPORTER, &params![instance]).await? {
                true => tx.query_all(sql, &[]).await,
                false => Ok(Vec::new()),
            }
        })
        .await
    }

    /// Raises the threshold to what the present stage reaches. A stage of some hosts takes those with the lowest places
    /// that are online or were offered the release before, so that one that goes offline is not replaced.
    pub async fn rollout_reach(&self, serial: i64, stage: Stage) -> Result<()> {
        let sql = "-- rollout_reach
            UPDATE rollouts r SET threshold = reach.place
              FROM (SELECT CASE WHEN $2 THEN $3 ELSE coalesce(max(first.place) + 1, 0) END AS place FROM (
                        SELECT m.place FROM rollout_members($1, NULL) m
                          JOIN agent_state s ON s.agent_id = m.agent_id
                          JOIN agent_updates u ON u.agent_id = m.agent_id
                         WHERE NOT $2 AND (s.presence = 'online' OR u.offered_serial = $1)
                         ORDER BY m.place LIMIT $3) first) reach
             WHERE r.serial = $1 AND r.state = 'running' AND r.threshold < reach.place";
        let (share, number) = match (stage.threshold(), stage) {
            (Some(threshold), _) => (true, threshold),
            (None, Stage::Hosts(hosts)) => (false, i32::try_from(hosts).unwrap_or(i32::MAX)),
            (None, Stage::Percent(_)) => return Ok(()),
        };
        let params = params![serial, share, number];
        let rows = self.call("rollout_reach", Maintenance, sql, &params);
        rows.await.map(drop)
    }

    /// `dark_after`: how long an agent must be offline to count as dark.
    pub async fn rollout_figures(
        &self,
        serial: i64,
        dark_after: std::time::Duration,
    ) -> Result<RolloutFigures> {
        let params = params![serial, dark_after.as_secs_f64()];
        let figures = self.read_first("rollout_figures", Maintenance, FIGURES, &params);
        Ok(figures.await?.unwrap_or_default())
    }

    /// Takes a step of a rollout that still is where it was judged, and records it. Returns whether it was.
    pub async fn rollout_step(&self, judged: &RunningRollout, step: &RolloutStep) -> Result<bool> {
        let last = usize::try_from(judged.stage).unwrap_or(0) + 1 >= judged.stages.len();
        let (state, stage, kind) = match step {
            RolloutStep::Halt(_) => (RolloutState::Halted, judged.stage, "rollout halted"),
            RolloutStep::Advance if last => (RolloutState::Done, judged.stage, "rollout done"),
            RolloutStep::Advance => (RolloutState::Running, judged.stage + 1, "rollout advanced"),
        };
        let (reason, text) = match step {
            RolloutStep::Halt(reason) => (reason.as_str(), reason.clone()),
            RolloutStep::Advance => {
                let stages = judged.stages.len();
                ("", format!("now at stage {} of {stages}", stage + 1))
            }
        };
        let sql = "-- rollout_step
            WITH stepped AS (
                UPDATE rollouts SET state = $3, stage = $4, reason = $5, stage_since = clock_timestamp()
                 WHERE serial = $1 AND stage = $2 AND state = 'running' RETURNING serial)
            SELECT serial, rollout_note(serial, $6, 'svc-ingest', $7) FROM stepped";
        let params = params![
            judged.serial,
            judged.stage,
            state.as_str(),
            stage,
            reason,
            kind,
            text
        ];
        let rows = self.call("rollout_step", Maintenance, sql, &params).await?;
        Ok(!rows.is_empty())
    }
}
