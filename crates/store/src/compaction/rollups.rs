//! The rollups of hours that a step changed, and of those that the previous version left.

use jiff::Timestamp;
use tokio_postgres::types::Type;

use super::{CompactionStep, HostOfHour, Hosts, LIMITS, SETTINGS, chunks::Chunks};
use crate::{
    error::StoreError,
    locks,
    pool::{Bulkhead, Store},
    tx::Tx,
};

/// A statement that computes the hours of `due`, which the given text defines. The last three
/// conditions keep a stored row whose samples were dropped meanwhile. The first one avoids
/// writing an unchanged row. The shapes that the rollups refer to are kept as long as rollups are.
macro_rules! compute {
    ($due:literal) => {
        concat!($due, ",
    written AS (
        INSERT INTO host_rollups AS known
        SELECT computed.* FROM due CROSS JOIN LATERAL host_hour(due.host_no, due.hour) computed
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
            fullest_disk_mount_point = excluded.fullest_disk_mount_point, parts = excluded.parts,
            shape = excluded.shape, figures = excluded.figures
        WHERE known.* IS DISTINCT FROM excluded.*
          AND excluded.sample_count >= known.sample_count
          AND excluded.first_at <= known.first_at AND excluded.last_at >= known.last_at
          AND (excluded.counters_from < known.hour OR known.counters_from >= known.hour)
        RETURNING host_id, shape),
    named AS (
        UPDATE sample_shapes s SET rolled_up = true
          FROM written w JOIN host_vitals v USING (host_id)
         WHERE s.host_no = v.host_no AND s.shape = w.shape AND NOT s.rolled_up)
    SELECT count(*) FROM due")
    };
}

/// The hour after a changed one is computed if it is stored; otherwise its own compaction will do it.
const WRITE: &str = compute!(
    "-- compaction_step
    WITH changed AS (SELECT DISTINCT host_no, hour FROM unnest($1::integer[], $2::timestamptz[]) AS c(host_no, hour)),
    due AS (
        SELECT host_no, hour FROM changed
         UNION
        SELECT c.host_no, after.hour FROM changed c JOIN host_vitals v USING (host_no)
         CROSS JOIN LATERAL (SELECT r.hour FROM host_rollups r
                              WHERE r.host_id = v.host_id AND r.hour = c.hour + interval '1 hour' OFFSET 0) after)"
);

const LEFT_OVER: &str = compute!(
    "-- rollups_left_over
    WITH taken AS (
        DELETE FROM rollups_due d
         USING (SELECT hour, host_id FROM rollups_due ORDER BY hour, host_id LIMIT $1) next
         WHERE d.hour = next.hour AND d.host_id = next.host_id
        RETURNING d.hour, d.host_id),
    due AS (SELECT v.host_no, taken.hour FROM taken JOIN host_vitals v USING (host_id))"
);

const NOTE: &str = "-- compaction_set_aside
    INSERT INTO rollups_set_aside AS known (hour, host_id, reason)
    SELECT coalesce(min(a.hour), $1), $2, $3 FROM rollups_set_aside a WHERE a.host_id = $2
    ON CONFLICT (hour, host_id) DO UPDATE
       SET tried_at = excluded.tried_at, tries = known.tries + 1, reason = excluded.reason";

impl Store {
    /// Computes hours that the previous version had to compute, at most `most`.
    pub async fn rollups_left_over(&self, most: i64) -> Result<CompactionStep, StoreError> {
        let name = "rollups_left_over";
        self.run_within(name, Bulkhead::Maintenance, &LIMITS, async |tx| {
            if !tx.try_lock(locks::COMPACTION).await? {
                return Ok(CompactionStep::default());
            }
            tx.execute(SETTINGS, &[]).await?;
            let row = tx.query_one(LEFT_OVER, &[(&most, Type::INT8)]).await?;
            Ok(CompactionStep {
                samples: 0,
                more: row.try_get::<_, i64>(0)? > 0,
            })
        })
        .await
    }

    /// Gives up the hour that `rollups_left_over` takes first, after it failed alone.
    pub async fn rollups_left_over_drop(&self, reason: &str) -> Result<(), StoreError> {
        let sql = "-- rollups_left_over_drop
            WITH given_up AS (
                DELETE FROM rollups_due d
                 USING (SELECT hour, host_id FROM rollups_due ORDER BY hour, host_id LIMIT 1) next
                 WHERE d.hour = next.hour AND d.host_id = next.host_id
                RETURNING d.hour, d.host_id)
            INSERT INTO rollups_set_aside (hour, host_id, reason) SELECT hour, host_id, $1 FROM given_up
            ON CONFLICT DO NOTHING";
        self.run(
            "rollups_left_over_drop",
            Bulkhead::Maintenance,
            async |tx| {
                tx.lock(locks::COMPACTION).await?;
                tx.execute(sql, &[(&reason, Type::TEXT)]).await.map(drop)
            },
        )
        .await
    }
}

impl Tx {
    /// Computes the hours of these chunks.
    pub(super) async fn rollups_write(&self, chunks: &Chunks) -> Result<(), StoreError> {
        let (host_nos, hours): (&Vec<i32>, &Vec<Timestamp>) = (&chunks.host_nos, &chunks.hours);
        let params = [
            (host_nos as _, Type::INT4_ARRAY),
            (hours as _, Type::TIMESTAMPTZ_ARRAY),
        ];
        self.query_one(WRITE, &params).await.map(drop)
    }

    /// Notes why a host is set aside. A host that fails again keeps its entry.
    pub(super) async fn set_aside_note(
        &self,
        of: &HostOfHour,
        reason: &str,
    ) -> Result<(), StoreError> {
        let params = [
            (&of.hour as _, Type::TIMESTAMPTZ),
            (&of.host_id as _, Type::UUID),
            (&reason as _, Type::TEXT),
        ];
        self.execute(NOTE, &params).await.map(drop)
    }

    /// Removes the entries of hosts that could be compacted.
    pub(super) async fn set_aside_forget(&self, host_nos: &[i32]) -> Result<(), StoreError> {
        let sql = "-- compaction_step
            DELETE FROM rollups_set_aside a USING host_vitals v
             WHERE v.host_id = a.host_id AND v.host_no = ANY ($1)";
        let params = [(&host_nos as _, Type::INT4_ARRAY)];
        self.execute(sql, &params).await.map(drop)
    }

    /// Passes hosts without compacting them. Returns false if that has happened already.
    pub(super) async fn hosts_leave(&self, hosts: &Hosts) -> Result<bool, StoreError> {
        let sql = "-- compaction_set_aside
            UPDATE sample_hours SET compacted_below = $3 WHERE arrived_hour = $1 AND sealed AND compacted_below <= $2";
        Ok(self.execute(sql, &hosts.params()).await? == 1)
    }

    /// Keeps the shapes of these chunks from being removed as unused. Rarely writes, and comes last in
    /// its transaction: an append may wait for these rows.
    pub(super) async fn shapes_seen(&self, chunks: &Chunks) -> Result<(), StoreError> {
        let sql = "-- compaction_step
            UPDATE sample_shapes s SET seen_on = current_date
              FROM (SELECT DISTINCT host_no, shape FROM unnest($1::integer[], $2::bigint[]) AS c(host_no, shape)) seen
             WHERE s.host_no = seen.host_no AND s.shape = seen.shape AND s.seen_on < current_date - 7";
        let params = [
            (&chunks.host_nos as _, Type::INT4_ARRAY),
            (&chunks.shapes as _, Type::INT8_ARRAY),
        ];
        self.execute(sql, &params).await.map(drop)
    }
}
