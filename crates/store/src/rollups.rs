//! Hourly rollups, computed from history for the hosts and hours that changed.
//!
//! They are exact because nothing is ever added to one: a changed hour is computed
//! anew, from all its samples. Who stores samples says in the same commit which
//! hours they fell into (`rollup_changes`); `rollups_gather` makes of that a list in
//! which each hour stands once, and `rollups_compute` works it off. Both are bounded
//! steps under one advisory lock, and any instance may take the next one.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::error::StoreError;
use crate::locks;
use crate::pool::{Bulkhead, Store};
use crate::tx::{Tx, TxLimits};

/// Batches whose changes one step gathers, and hours that one step computes.
const CHANGES_A_STEP: i64 = 500;
const HOURS_A_STEP: i64 = 500;

/// History that is not in memory has to be read from disk, and nobody waits for this.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(2),
    idle: Duration::from_secs(10),
    deadline: Duration::from_secs(75),
};

/// What one step of a rollup has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RollupStep {
    /// How much of its work was there: batches of changes, or hours.
    pub taken: i64,
    /// Whether there may be more. Not where somebody else is at it.
    pub more: bool,
}

/// An increase begins at the last sample of the hour before, so a change in one
/// hour is a change in the next one too, where that has begun. Clocks may be a
/// few minutes ahead.
const GATHER: &str = "-- rollups_gather
    WITH taken AS (
        DELETE FROM rollup_changes WHERE id IN (SELECT id FROM rollup_changes ORDER BY id LIMIT $1)
        RETURNING hour, host_ids),
    changed AS (SELECT DISTINCT hour, host_id FROM taken, unnest(host_ids) AS host_id),
    due AS (
        INSERT INTO rollups_due (hour, host_id)
        SELECT hour, host_id FROM changed
         UNION
        SELECT hour + interval '1 hour', host_id FROM changed WHERE hour + interval '1 hour' < now() + interval '10 minutes'
        ON CONFLICT DO NOTHING)
    SELECT count(*) FROM taken";

const PARTITIONS: &str = "-- rollups_compute
    SELECT rollups_partition_ensure(month)
      FROM (SELECT DISTINCT date_trunc('month', hour, 'UTC') AS month
              FROM (SELECT hour FROM rollups_due ORDER BY hour, host_id LIMIT $1) next) months";

/// History only grows, until it is dropped. So where it now holds less than a row
/// was made of (fewer samples, less of the hour, or not the hour before any more),
/// it has been dropped meanwhile, and the row stays as it was.
const COMPUTE: &str = "-- rollups_compute
    WITH due AS (
        DELETE FROM rollups_due d
         USING (SELECT hour, host_id FROM rollups_due ORDER BY hour, host_id LIMIT $1) next
         WHERE d.hour = next.hour AND d.host_id = next.host_id
        RETURNING d.hour, d.host_id),
    written AS (
        INSERT INTO host_metrics_hourly AS known
        SELECT computed.* FROM due CROSS JOIN LATERAL host_metrics_hour(due.host_id, due.hour) computed
        ON CONFLICT (host_id, hour) DO UPDATE SET
            first_at = excluded.first_at, last_at = excluded.last_at, counters_from = excluded.counters_from,
            cpu_percent_min = excluded.cpu_percent_min, cpu_percent_avg = excluded.cpu_percent_avg,
            cpu_percent_max = excluded.cpu_percent_max, load_1m_min = excluded.load_1m_min,
            load_1m_avg = excluded.load_1m_avg, load_1m_max = excluded.load_1m_max,
            load_5m_min = excluded.load_5m_min, load_5m_avg = excluded.load_5m_avg,
            load_5m_max = excluded.load_5m_max, load_15m_min = excluded.load_15m_min,
            load_15m_avg = excluded.load_15m_avg, load_15m_max = excluded.load_15m_max,
            memory_used_bytes_min = excluded.memory_used_bytes_min,
            memory_used_bytes_avg = excluded.memory_used_bytes_avg,
            memory_used_bytes_max = excluded.memory_used_bytes_max,
            memory_total_bytes = excluded.memory_total_bytes, swap_used_bytes_min = excluded.swap_used_bytes_min,
            swap_used_bytes_avg = excluded.swap_used_bytes_avg, swap_used_bytes_max = excluded.swap_used_bytes_max,
            swap_total_bytes = excluded.swap_total_bytes, process_count_min = excluded.process_count_min,
            process_count_avg = excluded.process_count_avg, process_count_max = excluded.process_count_max,
            network_rx_bytes_increase = excluded.network_rx_bytes_increase,
            network_tx_bytes_increase = excluded.network_tx_bytes_increase,
            fullest_disk_percent = excluded.fullest_disk_percent, sample_count = excluded.sample_count,
            fullest_disk_mount_point = excluded.fullest_disk_mount_point
        WHERE known.* IS DISTINCT FROM excluded.*
          AND excluded.sample_count >= known.sample_count
          AND excluded.first_at <= known.first_at AND excluded.last_at >= known.last_at
          AND (excluded.counters_from < known.hour OR known.counters_from >= known.hour))
    SELECT count(*) FROM due";

impl Store {
    /// Makes a list of the hours that changed.
    pub async fn rollups_gather(&self) -> Result<RollupStep, StoreError> {
        self.run_within(
            "rollups_gather",
            Bulkhead::Ingest,
            &LIMITS,
            async |tx| match lock(&tx).await? {
                true => step(&tx, GATHER, CHANGES_A_STEP).await,
                false => Ok(RollupStep::default()),
            },
        )
        .await
    }

    /// Computes the next hours of that list, the oldest first.
    pub async fn rollups_compute(&self) -> Result<RollupStep, StoreError> {
        self.run_within(
            "rollups_compute",
            Bulkhead::Ingest,
            &LIMITS,
            async |tx| match lock(&tx).await? {
                true => {
                    tx.execute(PARTITIONS, &[(&HOURS_A_STEP, Type::INT8)])
                        .await?;
                    step(&tx, COMPUTE, HOURS_A_STEP).await
                }
                false => Ok(RollupStep::default()),
            },
        )
        .await
    }
}

async fn lock(tx: &Tx) -> Result<bool, StoreError> {
    let sql = "-- rollups\nSELECT pg_try_advisory_xact_lock($1)";
    let row = tx.query_one(sql, &[(&locks::ROLLUPS, Type::INT8)]).await?;
    Ok(row.try_get(0)?)
}

async fn step(tx: &Tx, sql: &str, most: i64) -> Result<RollupStep, StoreError> {
    let taken = tx
        .query_one(sql, &[(&most, Type::INT8)])
        .await?
        .try_get(0)?;
    let more = taken == most;
    Ok(RollupStep { taken, more })
}
