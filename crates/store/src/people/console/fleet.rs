//! Counts of the fleet, what needs attention, and the state of the database.

use super::NO_WORKERS;
use crate::prelude::*;

record! {
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct FleetCounts {
        pub hosts: i64,
        pub retired: i64,
        pub online: i64,
        pub offline: i64,
        pub pending: i64,
        pub rejected: i64,
        pub revoked: i64,
    }
}

record! {
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct AttentionCounts {
        pub offline_day: i64,
        pub disks_90: i64,
        pub gaps_day: i64,
        pub dead_letters_day: i64,
        pub clock_skew: i64,
        pub clones_day: i64,
        pub tokens_expiring: i64,
        pub rollup_lag_seconds: f64,
    }
}

record! {
    #[derive(Debug, Clone, PartialEq)]
    pub struct DatabaseState {
        pub version: String,
        pub size_bytes: i64,
        pub samples_bytes: i64,
        pub rollups_bytes: i64,
        pub connections: i64,
        pub max_connections: i64,
        pub cache_hit_percent: Option<f64>,
        pub sample_days: i64,
        pub oldest_sample_day: Option<String>,
        pub rollup_months: i64,
        /// Hosts of arrival hours that could not be compacted.
        pub set_aside: i64,
        pub rollup_lag_seconds: f64,
    }
}

/// Retired hosts are counted by what is not in the index of those in service.
const COUNTS: &str = "-- console_counts
    SELECT h.in_service AS hosts, h.retired, s.online, o.offline, n.pending, n.rejected, n.revoked
      FROM (SELECT count(*) FILTER (WHERE retired_at IS NULL) AS in_service,
                   count(*) FILTER (WHERE retired_at IS NOT NULL) AS retired FROM hosts) h,
           (SELECT count(*) AS online FROM agent_state WHERE presence = 'online') s,
           (SELECT count(*) AS offline FROM agent_state st JOIN agents a ON a.id = st.agent_id AND a.status = 'active'
             WHERE st.presence = 'offline') o,
           (SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
                   count(*) FILTER (WHERE status = 'rejected') AS rejected,
                   count(*) FILTER (WHERE status = 'revoked') AS revoked FROM agents WHERE status <> 'active') n";

/// Gaps and copies are counted by agents, each of which remembers its last one: one agent may have thousands.
const ATTENTION: &str = "-- console_attention
    SELECT (SELECT count(*) FROM agent_state st JOIN agents a ON a.id = st.agent_id AND a.status = 'active'
             WHERE st.presence = 'offline' AND st.presence_since < now() - interval '1 day') AS offline_day,
           (SELECT count(*) FROM host_vitals v JOIN hosts h ON h.id = v.host_id
             WHERE v.fullest_disk_percent >= 90 AND h.retired_at IS NULL) AS disks_90,
           (SELECT count(*) FROM agent_state WHERE last_gap_at > now() - interval '1 day') AS gaps_day,
           (SELECT count(*) FROM agent_state WHERE last_dead_letter_at > now() - interval '1 day') AS dead_letters_day,
           (SELECT count(*) FROM agent_state WHERE presence = 'online' AND abs(clock_skew_ms) > 30000) AS clock_skew,
           (SELECT count(*) FROM agent_state WHERE clone_seen_at > now() - interval '1 day') AS clones_day,
           (SELECT count(*) FROM enrolment_token_states
             WHERE state = 'active' AND expires_at < now() + interval '3 days') AS tokens_expiring,
           (SELECT coalesce(greatest(extract(epoch FROM now() - min(arrived_hour) - interval '1 hour'), 0), 0)::float8
              FROM sample_hours WHERE finished_at IS NULL) AS rollup_lag_seconds";

const DATABASE: &str = "-- console_database
    SELECT current_setting('server_version') AS version,
           pg_database_size(current_database()) AS size_bytes,
           (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits
             WHERE inhparent IN ('samples_open'::regclass, 'sample_chunks'::regclass)) AS samples_bytes,
           (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits
             WHERE inhparent = 'host_rollups'::regclass) AS rollups_bytes,
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()) AS connections,
           current_setting('max_connections')::bigint AS max_connections,
           (SELECT 100.0::float8 * blks_hit / nullif(blks_hit + blks_read, 0) FROM pg_stat_database
             WHERE datname = current_database()) AS cache_hit_percent,
           (SELECT count(*) FROM pg_inherits WHERE inhparent = 'sample_chunks'::regclass) AS sample_days,
           (SELECT min(day)::text FROM sample_days) AS oldest_sample_day,
           (SELECT count(*) FROM pg_inherits WHERE inhparent = 'host_rollups'::regclass) AS rollup_months,
           (SELECT count(*) FROM hosts_set_aside) AS set_aside,
           (SELECT coalesce(greatest(extract(epoch FROM now() - min(arrived_hour) - interval '1 hour'), 0), 0)::float8
              FROM sample_hours WHERE finished_at IS NULL) AS rollup_lag_seconds";

impl Store {
    pub async fn console_counts(&self) -> Result<FleetCounts> {
        FleetCounts::from_row(&self.console_row(COUNTS).await?)
    }

    pub async fn console_attention(&self) -> Result<AttentionCounts> {
        AttentionCounts::from_row(&self.console_row(ATTENTION).await?)
    }

    pub async fn console_database(&self) -> Result<DatabaseState> {
        DatabaseState::from_row(&self.console_row(DATABASE).await?)
    }

    /// How many agents wait for a decision. Cheap: an index has them.
    pub async fn console_pending_count(&self) -> Result<i64> {
        let sql = "-- console_pending_count\nSELECT count(*) FROM agents WHERE status = 'pending'";
        Ok(self.console_row(sql).await?.try_get(0)?)
    }

    /// The queries are aggregates or constants, which always return one row.
    async fn console_row(&self, sql: &str) -> Result<Row> {
        self.run("console_row", Watch, async |tx| {
            tx.batch(NO_WORKERS).await?;
            tx.query_one(sql, &[]).await
        })
        .await
    }
}
