//! What is removed row by row: shapes after the last sample that has them, gaps with the samples of their time, old events, and notes
//! of past days and hours.

use std::time::Duration;

use super::{NEWEST, ROLLUPS_PARTITION};
use crate::prelude::*;

/// How many rows one statement removes.
const BATCH: i64 = 10_000;

impl Store {
    /// Removes the entries of dropped hours. They are kept for two days, so that a clock that was set back makes no finished
    /// hour again; those that were made by a clock that was ahead go at once, because that hour will come. Returns how many.
    pub async fn hours_prune(&self) -> Result<u64> {
        let sql = "-- hours_prune
            DELETE FROM sample_hours
             WHERE finished_at IS NOT NULL
               AND (arrived_hour < samples_now() - interval '2 days' OR arrived_hour > samples_now() + interval '4 hours')
               AND to_regclass('samples_open_' || to_char(arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')) IS NULL";
        let prune = async |tx: Tx| tx.execute(sql, &[]).await;
        self.run("hours_prune", Maintenance, prune).await
    }

    /// Removes the lists of parts that nothing refers to any more: those that no chunk, no agent and no latest sample was seen to
    /// use for longer than samples and rollups are kept. Returns how many.
    pub async fn shapes_prune(&self, samples: Duration, rollups: Duration) -> Result<u64> {
        let sql = format!(
            "-- shapes_prune
            DELETE FROM sample_shapes WHERE shape IN (
                SELECT s.shape FROM sample_shapes s
                 WHERE s.seen_on < ({NEWEST} - make_interval(secs => $1))::date - 14
                   AND NOT EXISTS (SELECT FROM agent_state a WHERE a.shape = s.shape)
                   AND NOT EXISTS (SELECT FROM host_vitals v WHERE v.shape = s.shape)
                 LIMIT $2 FOR UPDATE SKIP LOCKED)"
        );
        let kept = samples.max(rollups + ROLLUPS_PARTITION);
        self.prune("shapes_prune", &sql, kept).await
    }

    /// Removes what was counted of agents on the days before yesterday. Returns how many rows.
    pub async fn agent_counts_prune(&self) -> Result<u64> {
        let shapes = "-- agent_counts_prune
            DELETE FROM agent_shapes WHERE ctid = ANY (ARRAY (
                SELECT ctid FROM agent_shapes WHERE day < (now() AT TIME ZONE 'UTC' - make_interval(secs => $1))::date LIMIT $2))";
        let hours = "-- agent_counts_prune
            DELETE FROM agent_hours WHERE ctid = ANY (ARRAY (
                SELECT ctid FROM agent_hours WHERE counted_on < (now() - make_interval(secs => $1))::date LIMIT $2))";
        let day = Duration::from_hours(24);
        let removed = self.prune("agent_counts_prune", shapes, day).await?;
        Ok(removed + self.prune("agent_counts_prune", hours, day).await?)
    }

    /// Removes all events of agents and of people older than `retention`. Returns how many.
    pub async fn events_prune(&self, retention: Duration) -> Result<u64> {
        let mut removed = 0;
        for table in ["agent_events", "people_events"] {
            let sql = format!(
                "-- events_prune
                DELETE FROM {table} WHERE id IN (
                    SELECT id FROM {table}
                     WHERE at < {NEWEST} - make_interval(secs => $1) ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)"
            );
            removed += self.prune("events_prune", &sql, retention).await?;
        }
        Ok(removed)
    }

    /// Removes all gaps that are as old as dropped samples. Returns how many.
    pub async fn gaps_prune(&self, retention: Duration) -> Result<u64> {
        let sql = format!(
            "-- gaps_prune
            DELETE FROM metric_gaps WHERE id IN (
                SELECT id FROM (SELECT id, recorded_at FROM metric_gaps ORDER BY id LIMIT $2) oldest
                 WHERE recorded_at < {NEWEST} - make_interval(secs => $1) - interval '2 days')"
        );
        self.prune("gaps_prune", &sql, retention).await
    }

    /// Removes batch after batch, each in a transaction of its own, until one is not full.
    async fn prune(&self, name: &'static str, sql: &str, retention: Duration) -> Result<u64> {
        let params = params![retention.as_secs_f64(), BATCH];
        let mut removed = 0;
        loop {
            let batch = async |tx: Tx| tx.execute(sql, &params).await;
            let rows = self.run(name, Maintenance, batch).await?;
            removed += rows;
            if rows < BATCH.unsigned_abs() {
                return Ok(removed);
            }
        }
    }
}
