//! The state of the whole fleet and its history in a few numbers, for `/metrics`.
//!
//! The numbers are the same on every instance, so one instance reads them: the *reporter*, which is the live instance with
//! the oldest lease. For all others the call costs one index lookup. When the reporter is lost, the next one takes over
//! as soon as the lease has expired; for a period both may report, and they agree.

use std::time::Duration;

use crate::prelude::*;

#[derive(Debug, Clone, PartialEq)]
pub struct FleetGauges {
    pub agents: Vec<AgentGroup>,
    pub state: FleetState,
}

record! {
    /// How many agents have this status and presence.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AgentGroup {
        pub status: String,
        pub presence: String,
        pub count: i64,
    }
}

record! {
    #[derive(Debug, Clone, PartialEq)]
    pub struct FleetState {
        pub instances: i64,
        /// How long the oldest pending registration has waited; 0 without one.
        pub pending_seconds: f64,
        /// Hosts whose agents had a gap recorded in the last 24 hours.
        pub hosts_with_gaps: i64,
        /// Since the end of the oldest arrival hour that is not compacted.
        pub compaction_lag_seconds: f64,
        /// Arrival hours of hosts that could not be compacted, even alone.
        pub hosts_set_aside: i64,
        /// Arrival hours that have been compacted for an hour and are still there.
        pub hours_undropped: i64,
        /// Days of samples that are older than the retention and still there.
        pub days_undropped: i64,
        /// Rollouts that the service has halted.
        pub rollouts_halted: i64,
        /// Active agents that say what they trust and lack an anchor that is in use.
        pub agents_without_anchor: i64,
        /// Server processes of this role in a transaction that no client of ours has any more: nothing that the
        /// service does in a transaction takes three minutes, except the pass that drops partitions.
        pub backends_orphaned: i64,
    }
}

pub(super) const IS_REPORTER: &str = "-- fleet_gauges
    SELECT coalesce((SELECT id FROM ingest_instances
                      WHERE NOT fenced AND stopped_at IS NULL AND expires_at > now()
                      ORDER BY started_at, id LIMIT 1) = $1, false)";

/// Indexes answer it: nearly all agents are active and online, and only the others are looked at one by one. Every agent
/// has a row in `agent_state`.
const AGENTS: &str = "-- fleet_gauges
    WITH others AS MATERIALIZED (
        SELECT a.status, s.presence
          FROM agents a JOIN agent_state s ON s.agent_id = a.id
         WHERE a.status <> 'active'),
    active AS (
        SELECT (SELECT count(*) FROM agents) - (SELECT count(*) FROM others) AS agents,
               (SELECT count(*) FROM agent_state WHERE presence = 'offline')
             - (SELECT count(*) FROM others WHERE presence = 'offline') AS offline,
               (SELECT count(*) FROM agent_state WHERE presence = 'moved')
             - (SELECT count(*) FROM others WHERE presence = 'moved') AS moved)
    SELECT status, presence, count(*) AS count FROM others GROUP BY status, presence
     UNION ALL SELECT 'active', 'offline', offline FROM active
     UNION ALL SELECT 'active', 'moved', moved FROM active WHERE moved > 0
     UNION ALL SELECT 'active', 'online', agents - offline - moved FROM active";

const STATE: &str = "-- fleet_gauges
    SELECT (SELECT count(*) FROM ingest_instances
             WHERE NOT fenced AND stopped_at IS NULL AND expires_at > now()) AS instances,
           (SELECT coalesce(extract(epoch FROM now() - min(greatest(created_at, decided_at))), 0)::float8
              FROM agents WHERE status = 'pending') AS pending_seconds,
           (SELECT count(DISTINCT a.host_id) FROM agent_state s JOIN agents a ON a.id = s.agent_id
             WHERE s.last_gap_at > now() - interval '1 day') AS hosts_with_gaps,
           (SELECT coalesce(greatest(extract(epoch FROM samples_now() - min(arrived_hour) - interval '1 hour'), 0), 0)::float8
              FROM sample_hours WHERE compacted_below < 2147483647) AS compaction_lag_seconds,
           (SELECT count(*) FROM hosts_set_aside) AS hosts_set_aside,
           (SELECT count(*) FROM sample_hours
             WHERE finished_at < now() - interval '1 hour'
               AND to_regclass('samples_open_' || to_char(arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')) IS NOT NULL) AS hours_undropped,
           (SELECT count(*) FROM sample_days
             WHERE day::timestamp AT TIME ZONE 'UTC'
                   < date_trunc('day', now() - make_interval(secs => $1), 'UTC') - interval '1 day') AS days_undropped,
           (SELECT count(*) FROM rollouts WHERE state = 'halted') AS rollouts_halted,
           (SELECT count(*) FROM agent_trust t JOIN agents a ON a.id = t.agent_id
             WHERE EXISTS (SELECT FROM trust_anchors x WHERE x.retired_at IS NULL)
               AND a.status = 'active' AND t.anchors <> '{}'
               AND NOT t.anchors @> (SELECT array_agg(x.hash) FROM trust_anchors x WHERE x.retired_at IS NULL)) AS agents_without_anchor,
           (SELECT count(*) FROM pg_stat_activity a
             WHERE a.datname = current_database() AND a.usename = current_user
               AND a.application_name = current_setting('application_name')
               AND a.xact_start < now() - interval '3 minutes'
               AND NOT EXISTS (SELECT FROM pg_locks l
                                WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.granted)) AS backends_orphaned";

impl Store {
    /// `None` unless `instance` is the reporter. `retention` is that of the samples.
    pub async fn fleet_gauges(
        &self,
        instance: Uuid,
        retention: Duration,
    ) -> Result<Option<FleetGauges>> {
        let seconds = retention.as_secs_f64();
        self.run("fleet_gauges", Watch, async |tx: Tx| {
            if !tx
                .query_value::<bool>(IS_REPORTER, &params![instance])
                .await?
            {
                return Ok(None);
            }
            let agents = tx.query_all(AGENTS, &[]).await?;
            let state = FleetState::from_row(&tx.query_one(STATE, &params![seconds]).await?)?;
            Ok(Some(FleetGauges { agents, state }))
        })
        .await
    }
}
