//! One host's history for its plots: samples or rollups, gaps with their reasons, presence, and
//! events on the same time axis.

mod samples;

use crate::{people::books::GapRecord, prelude::*, values::event_kind::EventKind};
pub use samples::{DiskColumns, SampleColumns};

/// The most samples of one plot, in whole hours: more than an agent that samples every 10 s has in a day and
/// an hour.
const SAMPLES: i64 = 10_000;

record! {
    /// Hours, or days and weeks combined from them.
    #[derive(Debug, Clone)]
    pub struct RollupPoint {
        pub at: Timestamp,
        pub cpu_percent: f64,
        pub load_1m: f64,
        pub memory_used_bytes: i64,
        pub memory_total_bytes: i64,
        /// Bytes a second.
        pub network_rx: f64,
        pub network_tx: f64,
        pub fullest_disk_percent: Option<f64>,
    }
}

record! {
    #[derive(Debug, Clone)]
    pub struct PresenceMark {
        pub at: Timestamp,
        pub online: bool,
        pub reason: Option<String>,
    }
}

record! {
    #[derive(Debug, Clone)]
    pub struct EventMark {
        pub at: Timestamp,
        pub kind: EventKind,
        pub actor: Option<String>,
        pub text: String,
    }
}

impl Store {
    /// The samples of the newest hours since `from`, in the order of their times.
    pub async fn console_samples(&self, host: HostId, from: Timestamp) -> Result<SampleColumns> {
        let sql = "-- console_samples
            SELECT agent_id, sampled_at, seq, cpu_percent, load_1m, memory_used_bytes, memory_total_bytes,
                   network_rx_bytes, network_tx_bytes, mount_points, disk_bytes
              FROM (SELECT *, sum(cardinality(cpu_percent)) OVER (ORDER BY hour DESC) AS with_newer
                      FROM host_chunks($1, $2, now() + interval '10 minutes')) chunks
             WHERE with_newer <= $3 ORDER BY hour";
        let params = params![host.0, from, SAMPLES];
        let rows = self.read("console_samples", Ingest, sql, &params);
        SampleColumns::from_rows(&rows.await?, from)
    }

    /// Rollups since `from`, combined to `step` (`hour` or `day`). Means are weighted by samples.
    pub async fn console_rollups(
        &self,
        host: HostId,
        from: Timestamp,
        step: &str,
    ) -> Result<Vec<RollupPoint>> {
        let sql = "-- console_rollups
            SELECT date_trunc($3, hour, 'UTC') AS at,
                   sum(cpu_percent_avg * sample_count) / sum(sample_count) AS cpu_percent,
                   sum(load_1m_avg * sample_count) / sum(sample_count) AS load_1m,
                   (sum(memory_used_bytes_avg::float8 * sample_count) / sum(sample_count))::bigint AS memory_used_bytes,
                   max(memory_total_bytes) AS memory_total_bytes,
                   coalesce(sum(network_rx_bytes_increase)::float8
                            / nullif(sum(extract(epoch FROM last_at - counters_from)), 0)::float8, 0) AS network_rx,
                   coalesce(sum(network_tx_bytes_increase)::float8
                            / nullif(sum(extract(epoch FROM last_at - counters_from)), 0)::float8, 0) AS network_tx,
                   max(fullest_disk_percent) AS fullest_disk_percent
              FROM host_metrics_hourly
             WHERE host_id = $1 AND hour >= $2 AND hour <= now()
             GROUP BY 1 ORDER BY 1";
        let params = params![host.0, from, step];
        self.read_all("console_rollups", Ingest, sql, &params).await
    }

    /// The gaps of the host's agents that were recorded since `from`: of each agent the newest.
    pub async fn console_gaps(&self, host: HostId, from: Timestamp) -> Result<Vec<GapRecord>> {
        let sql = "-- console_gaps
            SELECT g.agent_id, g.first_seq, g.last_seq, g.kind, g.reason, g.recorded_at
              FROM agents a
             CROSS JOIN LATERAL (SELECT * FROM metric_gaps g WHERE g.agent_id = a.id ORDER BY g.first_seq DESC LIMIT 1000) g
             WHERE a.host_id = $1 AND g.recorded_at >= $2
             ORDER BY a.id, g.first_seq";
        let params = params![host.0, from];
        self.read_all("console_gaps", Ingest, sql, &params).await
    }

    /// The changes of the host's presence since `from`, preceded by the last one before.
    pub async fn console_presence(
        &self,
        host: HostId,
        from: Timestamp,
    ) -> Result<Vec<PresenceMark>> {
        let sql = "-- console_presence
            WITH mine AS (SELECT id FROM agents WHERE host_id = $1),
            before AS (
                SELECT last.* FROM mine CROSS JOIN LATERAL (
                    SELECT e.at, e.to_status, e.reason FROM agent_events e
                     WHERE e.agent_id = mine.id AND e.kind = 'presence' AND e.at < $2 ORDER BY e.id DESC LIMIT 1) last
                 ORDER BY last.at DESC LIMIT 1)
            SELECT at, to_status = 'online' AS online, reason FROM before
             UNION ALL
            (SELECT e.at, e.to_status = 'online', e.reason
               FROM agent_events e JOIN mine ON mine.id = e.agent_id
              WHERE e.kind = 'presence' AND e.at >= $2 ORDER BY e.id DESC LIMIT 1000)
             ORDER BY at";
        let params = params![host.0, from];
        self.read_all("console_presence", Ingest, sql, &params)
            .await
    }

    /// The newest notes, changes of labels and decisions of a host since `from`, newest first.
    pub async fn console_host_events(
        &self,
        host: HostId,
        from: Timestamp,
    ) -> Result<Vec<EventMark>> {
        let sql = "-- console_host_events
            SELECT at, kind, actor, text FROM (
                (SELECT at, kind, actor, text FROM host_events WHERE host_id = $1 AND at >= $2 ORDER BY at DESC LIMIT 100)
                 UNION ALL
                (SELECT e.at, e.kind, e.actor, concat_ws(': ', coalesce(e.to_status, CASE WHEN e.kind <> 'cell' THEN 'deleted' END), e.reason)
                   FROM agent_events e JOIN agents a ON a.id = e.agent_id
                  WHERE a.host_id = $1 AND e.kind <> 'presence' AND e.at >= $2 ORDER BY e.at DESC LIMIT 100)) marks
             ORDER BY at DESC LIMIT 100";
        let params = params![host.0, from];
        self.read_all("console_host_events", Ingest, sql, &params)
            .await
    }
}
