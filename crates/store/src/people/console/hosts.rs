//! Rows of the list of hosts, and what is drawn beside them. `search` finds which hosts they are.

use crate::{
    people::hosts::{HostRecord, SELECT},
    prelude::*,
    values::status::Presence,
};

record! {
    /// The mean use of the processors in one hour.
    #[derive(Debug, Clone)]
    pub struct SparkPoint {
        pub host_id: HostId,
        /// 0 is the oldest hour shown.
        pub position: i32,
        pub cpu_percent: f64,
    }
}

record! {
    /// Whether a host reports.
    #[derive(Debug, Clone)]
    pub struct HostState {
        pub hostname: String,
        pub retired_at: Option<Timestamp>,
        /// Of the active agent.
        pub presence: Option<Presence>,
        pub presence_since: Option<Timestamp>,
        /// Why its presence is what it is.
        pub cause: Option<String>,
    }
}

/// The rows of the hosts `$1`, in the order of their names.
pub(super) fn rows_sql() -> String {
    format!("-- console_hosts_by_id\n{SELECT} WHERE h.id = ANY ($1) ORDER BY h.hostname, h.id")
}

impl Store {
    /// The rows of these hosts, in the order of their names.
    pub async fn console_hosts_by_id(&self, hosts: &[Uuid]) -> Result<Vec<HostRecord>> {
        let params = params![hosts];
        let (name, sql) = ("console_hosts_by_id", rows_sql());
        self.read_all(name, Ingest, &sql, &params).await
    }

    /// `None` if there is no such host.
    pub async fn console_host_state(&self, host: HostId) -> Result<Option<HostState>> {
        let sql = "-- console_host_state
            SELECT h.hostname, h.retired_at, s.presence, s.presence_since, s.cause
              FROM hosts h
              LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
              LEFT JOIN agent_state s ON s.agent_id = a.id
             WHERE h.id = $1";
        let params = params![host.0];
        self.read_first("console_host_state", Ingest, sql, &params)
            .await
    }

    /// How many of these hosts are online.
    pub async fn console_hosts_online(&self, hosts: &[Uuid]) -> Result<i64> {
        let sql = "-- console_hosts_online
            SELECT count(*) FROM agents a JOIN agent_state s ON s.agent_id = a.id
             WHERE a.host_id = ANY ($1) AND a.status = 'active' AND s.presence = 'online'";
        let params = params![hosts];
        let rows = self.read("console_hosts_online", Ingest, sql, &params);
        let rows = rows.await?;
        rows.first().map_or(Ok(0), |row| Ok(row.try_get(0)?))
    }

    /// The hours of these hosts since `begins`: stored rollups, and the mean of the samples that are not compacted yet. (The
    /// view `host_metrics_hourly` would roll up all vitals of each of these hours.) An hour that has both, because samples
    /// came late, shows the mean of the two. The planner must know the first hour: it leaves out the months before.
    pub async fn console_sparklines(
        &self,
        hosts: &[Uuid],
        begins: Timestamp,
    ) -> Result<Vec<SparkPoint>> {
        let sql = "-- console_sparklines
            WITH hourly AS (
                SELECT r.host_id, r.hour, r.cpu_percent_avg AS cpu
                  FROM host_rollups r
                 WHERE r.host_id = ANY ($1) AND r.hour >= $2 AND r.hour <= now()
                 UNION ALL
                SELECT v.host_id, date_trunc('hour', o.sampled_at, 'UTC'), avg(o.cpu_percent)
                  FROM host_vitals v JOIN samples_visible o ON o.host_no = v.host_no
                 WHERE v.host_id = ANY ($1) AND o.sampled_at >= $2 AND o.sampled_at <= now()
                 GROUP BY 1, 2)
            SELECT host_id, (extract(epoch FROM hour - $2) / 3600)::int AS position, avg(cpu) AS cpu_percent
              FROM hourly
             GROUP BY host_id, hour
             ORDER BY host_id, hour";
        let params = params![hosts, begins];
        self.read_all("console_sparklines", Ingest, sql, &params)
            .await
    }
}
