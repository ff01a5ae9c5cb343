//! Hourly rollups, computed from the samples of the hosts and hours that changed.
//!
//! **Exactness.** A rollup is never updated incrementally. A changed hour is computed again
//! from all its samples, so duplicates, late samples and crashes cannot distort it.
//!
//! **No change is lost.** An append of samples writes the changed hours to `rollup_changes` in
//! its own transaction, so a change becomes visible together with its samples. `rollups_gather`
//! moves changes to `rollups_due`, where each host and hour occurs once. `rollups_compute`
//! deletes entries there and writes their rollups. Both are single transactions: if one
//! fails, its input is still there. A change that commits after a step took its snapshot is
//! not deleted by that step and stays for the next one.
//!
//! **Concurrency.** Each step is bounded and runs under one advisory lock. Any instance may do
//! the next step; an instance that finds the lock taken skips its turn. Appends never wait
//! for the lock.
//!
//! **One host stops nobody.** A step that fails for its data or its time can be repeated with fewer
//! hours, down to one. An hour that fails alone is set aside (`rollups_set_aside`) with the
//! reason, and is tried again later, alone. While it is there, `rollups_gather` leaves it out:
//! its next try reads all samples anyway.
//!
//! **Rollups outlive samples.** An hour may be due after a part of its samples was dropped,
//! because a late sample arrived. Samples are only ever added, until they are dropped. So if a
//! new computation covers less than the stored row (fewer samples, a later start, an earlier
//! end, or the hour before is missing), samples were dropped, and the stored row stays.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::Type;

use crate::{
    error::StoreError,
    ids::HostId,
    locks,
    pool::{Bulkhead, Store},
    record::record,
    tx::{Param, Tx, TxLimits},
};

/// How many rows of `rollup_changes` one step gathers at most, and how many hours one computes.
pub const ROLLUP_STEP: i64 = 500;

/// Long limits, because old samples are read from disk and no client waits for a rollup.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(2),
    idle: Duration::from_secs(10),
    deadline: Duration::from_secs(75),
};

/// The outcome of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RollupStep {
    /// How many changes were gathered, or how many hours computed.
    pub taken: i64,
    /// Whether there may be more to do. False if another instance holds the lock.
    pub more: bool,
}

record! {
    /// One hour of one host.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostHour {
        pub hour: Timestamp,
        pub host_id: HostId,
    }
}

/// Counter increases start at the last sample of the hour before. So a change in one hour
/// makes the next hour due too, if that has begun. The agents' clocks may be some minutes
/// ahead.
const GATHER: &str = "-- rollups_gather
    WITH taken AS (
        DELETE FROM rollup_changes WHERE id IN (SELECT id FROM rollup_changes ORDER BY id LIMIT $1)
        RETURNING hour, host_ids),
    changed AS (SELECT DISTINCT hour, host_id FROM taken, unnest(host_ids) AS host_id),
    affected AS (
        SELECT hour, host_id FROM changed
         UNION
        SELECT hour + interval '1 hour', host_id FROM changed WHERE hour + interval '1 hour' < now() + interval '10 minutes'),
    due AS (
        INSERT INTO rollups_due (hour, host_id)
        SELECT hour, host_id FROM affected
         WHERE NOT EXISTS (SELECT FROM rollups_set_aside a WHERE a.hour = affected.hour AND a.host_id = affected.host_id)
        ON CONFLICT DO NOTHING)
    SELECT count(*) FROM taken";

/// A statement that computes the hours of `due`, which the given text defines. The last three
/// conditions keep a stored row whose samples were dropped meanwhile. The first one avoids
/// writing an unchanged row.
macro_rules! compute {
    ($due:literal) => {
        concat!($due, ",
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
    SELECT count(*) FROM due")
    };
}

const COMPUTE: &str = compute!(
    "-- rollups_compute
    WITH due AS (
        DELETE FROM rollups_due d
         USING (SELECT hour, host_id FROM rollups_due ORDER BY hour, host_id LIMIT $1) next
         WHERE d.hour = next.hour AND d.host_id = next.host_id
        RETURNING d.hour, d.host_id)"
);

const COMPUTE_ONE: &str = compute!(
    "-- rollups_compute_one
    WITH due AS (SELECT $1::timestamptz AS hour, $2::uuid AS host_id),
    no_longer_due AS (DELETE FROM rollups_due WHERE hour = $1 AND host_id = $2),
    no_longer_aside AS (DELETE FROM rollups_set_aside WHERE hour = $1 AND host_id = $2)"
);

const SET_ASIDE: &str = "-- rollups_set_aside
    WITH no_longer_due AS (DELETE FROM rollups_due WHERE hour = $1 AND host_id = $2)
    INSERT INTO rollups_set_aside AS known (hour, host_id, reason) VALUES ($1, $2, $3)
    ON CONFLICT (hour, host_id) DO UPDATE
       SET tried_at = excluded.tried_at, tries = known.tries + 1, reason = excluded.reason";

impl Store {
    /// Moves at most `most` changes to the list of due hours.
    pub async fn rollups_gather(&self, most: i64) -> Result<RollupStep, StoreError> {
        self.rollup_step("rollups_gather", GATHER, most).await
    }

    /// Computes the oldest due hours, at most `most`.
    pub async fn rollups_compute(&self, most: i64) -> Result<RollupStep, StoreError> {
        self.rollup_step("rollups_compute", COMPUTE, most).await
    }

    /// The hour that `rollups_compute` takes first.
    pub async fn rollups_first_due(&self) -> Result<Option<HostHour>, StoreError> {
        let sql = "-- rollups_first_due
            SELECT hour, host_id FROM rollups_due ORDER BY hour, host_id LIMIT 1";
        self.host_hour("rollups_first_due", sql, &[]).await
    }

    /// The hour that was set aside and has not been tried for longest, if that is at least `pause`.
    pub async fn rollups_next_try(&self, pause: Duration) -> Result<Option<HostHour>, StoreError> {
        let sql = "-- rollups_next_try
            SELECT hour, host_id FROM rollups_set_aside
             WHERE tried_at <= now() - make_interval(secs => $1) ORDER BY tried_at LIMIT 1";
        let pause = pause.as_secs_f64();
        let params = [(&pause as _, Type::FLOAT8)];
        self.host_hour("rollups_next_try", sql, &params).await
    }

    /// Computes one hour, due or set aside. Does nothing if another instance holds the lock.
    pub async fn rollups_compute_one(&self, of: HostHour) -> Result<(), StoreError> {
        let params = [
            (&of.hour as _, Type::TIMESTAMPTZ),
            (&of.host_id.0 as _, Type::UUID),
        ];
        self.under_lock("rollups_compute_one", COMPUTE_ONE, &params)
            .await
            .map(drop)
    }

    /// Sets an hour aside that failed, or notes another failure of it.
    pub async fn rollups_set_aside(&self, of: HostHour, reason: &str) -> Result<(), StoreError> {
        self.run("rollups_set_aside", Bulkhead::Maintenance, async |tx| {
            tx.lock(locks::ROLLUPS).await?;
            let params = [
                (&of.hour as _, Type::TIMESTAMPTZ),
                (&of.host_id.0 as _, Type::UUID),
                (&reason as _, Type::TEXT),
            ];
            tx.execute(SET_ASIDE, &params).await.map(drop)
        })
        .await
    }

    /// How many hours are set aside.
    pub async fn rollups_set_aside_count(&self) -> Result<i64, StoreError> {
        let sql = "-- rollups_set_aside_count\nSELECT count(*) FROM rollups_set_aside";
        self.run(
            "rollups_set_aside_count",
            Bulkhead::Maintenance,
            async |tx| Ok(tx.query_one(sql, &[]).await?.try_get(0)?),
        )
        .await
    }

    async fn host_hour(
        &self,
        name: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<HostHour>, StoreError> {
        let look = async |tx: Tx| tx.query_opt(sql, params).await;
        let row = self.run(name, Bulkhead::Maintenance, look).await?;
        row.as_ref().map(HostHour::from_row).transpose()
    }

    async fn rollup_step(
        &self,
        name: &'static str,
        sql: &str,
        most: i64,
    ) -> Result<RollupStep, StoreError> {
        let taken = self.under_lock(name, sql, &[(&most, Type::INT8)]).await?;
        Ok(RollupStep {
            taken: taken.unwrap_or(0),
            more: taken == Some(most),
        })
    }

    /// Runs a statement that returns a number; `None` if another instance holds the lock.
    async fn under_lock(
        &self,
        name: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<i64>, StoreError> {
        self.run_within(name, Bulkhead::Maintenance, &LIMITS, async |tx| {
            match tx.try_lock(locks::ROLLUPS).await? {
                true => Ok(Some(tx.query_one(sql, params).await?.try_get(0)?)),
                false => Ok(None),
            }
        })
        .await
    }
}
