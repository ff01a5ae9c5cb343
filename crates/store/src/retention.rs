//! Retention: partitions are created ahead, and dropped when they are compacted or too old. Gaps are removed
//! with the samples of their time, shapes after the last sample that has them, and old events are removed.
//!
//! **Dropping must not block inserts.** A plain DROP or DETACH of a partition needs an ACCESS
//! EXCLUSIVE lock on the parent table. It would wait for every running query, and meanwhile all
//! inserts would queue behind it. `DETACH PARTITION … CONCURRENTLY` takes a weaker lock, and
//! waits for the transactions that may still use the partition without blocking others. No query uses
//! the detached table any more, so it can be dropped at once. The statement cannot run inside a
//! transaction, so it needs a connection of its own ([`DirectConnection`]).
//!
//! **Crash safety.** A pass that is killed leaves a partition in one of two intermediate states:
//! detach pending, or detached but not dropped. The next pass finds both in the catalog and
//! continues: it finalizes a pending detach, and drops a detached table. No state is kept
//! elsewhere. What is due follows from the clock and the retention alone, so a changed retention
//! needs no migration: a partition that is within a longer retention again is finalized only,
//! and `partitions_create` attaches it again.
//!
//! **One pass at a time.** A transaction holds an advisory lock during the pass. It must not
//! hold a snapshot, because the concurrent detach waits for all older snapshots, including
//! this one: hence `release_snapshot`.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::{
    direct_connection::DirectConnection,
    error::StoreError,
    locks,
    pool::{Bulkhead, Store},
    record::record,
    tx::{Param, Tx, TxLimits},
    url::DatabaseUrl,
};

/// How many rows one statement removes.
const BATCH: i64 = 10_000;

/// Rollups go month by month, so the first of a month stays this much longer.
const ROLLUPS_PARTITION: Duration = Duration::from_hours(31 * 24);

/// The limits of the transaction that holds the lock during a pass.
const HOLDING: TxLimits = TxLimits {
    statement: Duration::from_secs(5),
    lock: Duration::from_secs(2),
    idle: Duration::from_mins(15),
    deadline: Duration::from_mins(15),
};

/// The limits of each statement that detaches or drops.
const DROPPING: TxLimits = TxLimits {
    statement: Duration::from_mins(2),
    lock: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    deadline: Duration::from_mins(15),
};

/// The partitions to remove or to finalize, oldest first. It includes detached tables, which a
/// killed pass left. A day of the previous version's samples is kept until its hours are rolled up, but at most
/// two days longer than without that: rollups that fail must not fill the disk. This includes the first hour
/// after it, whose counter increases start at its last sample. A month of rollups is kept as long
/// as samples of it may exist.
const EXPIRED: &str = "-- partitions_drop
    WITH partition AS (
        SELECT quote_ident(current_schema()) AS schema, c.relname AS name, kind.parent, i.inhrelid IS NOT NULL AS attached,
               coalesce(i.inhdetachpending, false) AS pending, kind.kept_from,
               to_date(substring(c.relname FROM kind.pattern), kind.form)::timestamp AT TIME ZONE 'UTC' AS begins
          FROM (VALUES ('sample_chunks', '^sample_chunks_(\\d{8})$', 'YYYYMMDD',
                        date_trunc('day', now() - make_interval(secs => $1), 'UTC') - interval '1 day'),
                       ('host_metrics_old', '^host_metrics_old_(\\d{8})$', 'YYYYMMDD',
                        date_trunc('day', now() - make_interval(secs => $1), 'UTC') - interval '1 day'),
                       ('host_rollups', '^host_rollups_(\\d{6})$', 'YYYYMM',
                        date_trunc('month', now() - make_interval(secs => greatest($2, $1 + 5 * 86400)), 'UTC')))
               AS kind(parent, pattern, form, kept_from)
          JOIN pg_class p ON p.oid = kind.parent::regclass
          JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND c.relname ~ kind.pattern
          LEFT JOIN pg_inherits i ON i.inhrelid = c.oid)
    SELECT schema, name, parent, attached, pending, too_old
      FROM partition
     CROSS JOIN LATERAL (
           SELECT begins < kept_from
              AND (parent <> 'host_metrics_old' OR begins < kept_from - interval '2 days'
                   OR NOT EXISTS (SELECT FROM rollups_due WHERE hour BETWEEN begins AND begins + interval '1 day')) AS too_old) judged
     WHERE pending OR too_old
     ORDER BY begins";

/// The partitions of finished arrival hours, oldest first.
const COMPACTED: &str = "-- hours_drop
    SELECT quote_ident(current_schema()) AS schema, c.relname AS name, 'samples_open' AS parent, i.inhrelid IS NOT NULL AS attached,
           coalesce(i.inhdetachpending, false) AS pending, true AS too_old
      FROM sample_hours h
      JOIN pg_class p ON p.oid = 'samples_open'::regclass
      JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r'
           AND c.relname = 'samples_open_' || to_char(h.arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')
      LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
     WHERE h.compacted_below = 2147483647
     ORDER BY h.arrived_hour";

const DAYS: &str = "-- partitions_create
    SELECT metrics_partitions_ensure(make_interval(secs => $1)) AS made";

/// The months of all days of samples, and of the hour after each day, which is rolled up with it.
const MONTHS: &str = "-- partitions_create
    SELECT rollups_partition_ensure(month AT TIME ZONE 'UTC')
      FROM (SELECT DISTINCT date_trunc('month', day + after)
              FROM sample_days CROSS JOIN (VALUES (interval '0'), (interval '1 day')) AS hours(after)) months(month)";

record! {
    #[derive(Debug)]
    struct Partition {
        /// Quoted, because the direct connection may have another search path.
        schema: String,
        name: String,
        parent: String,
        attached: bool,
        /// A detach began and did not finish.
        pending: bool,
        too_old: bool,
    }
}

impl Store {
    /// Creates the daily partitions for samples within the retention and the next days, and the
    /// monthly partitions for their rollups. Returns how many days were missing.
    pub async fn partitions_create(&self, retention: Duration) -> Result<i32, StoreError> {
        let seconds = retention.as_secs_f64();
        self.run(
            "partitions_create",
            Bulkhead::Maintenance,
            |tx| async move {
                tx.lock(locks::SCHEMA).await?;
                let params = [(&seconds as _, Type::FLOAT8)];
                let made = tx.query_one(DAYS, &params).await?.try_get("made")?;
                tx.execute(MONTHS, &[]).await?;
                Ok(made)
            },
        )
        .await
    }

    /// Drops the days of samples and the months of rollups that are beyond their retention.
    /// Returns their names: none if another instance holds the lock.
    pub async fn partitions_drop(
        &self,
        direct: &DatabaseUrl,
        samples: Duration,
        rollups: Duration,
    ) -> Result<Vec<String>, StoreError> {
        let (samples, rollups) = (samples.as_secs_f64(), rollups.as_secs_f64());
        let params = [(&samples as _, Type::FLOAT8), (&rollups as _, Type::FLOAT8)];
        self.remove("partitions_drop", EXPIRED, &params, direct)
            .await
    }

    /// Drops the arrival hours that are compacted, like `partitions_drop`.
    pub async fn hours_drop(&self, direct: &DatabaseUrl) -> Result<Vec<String>, StoreError> {
        self.remove("hours_drop", COMPACTED, &[], direct).await
    }

    /// Drops the partitions that a query returns.
    async fn remove(
        &self,
        name: &'static str,
        sql: &str,
        params: &[Param<'_>],
        direct: &DatabaseUrl,
    ) -> Result<Vec<String>, StoreError> {
        self.run_within(name, Bulkhead::Maintenance, &HOLDING, async |tx| {
            if !tx.try_lock(locks::RETENTION).await? {
                return Ok(Vec::new());
            }
            let rows = tx.query(sql, params).await?;
            let partitions = rows.iter().map(Partition::from_row);
            let partitions = partitions.collect::<Result<Vec<_>, _>>()?;
            if partitions.is_empty() {
                return Ok(Vec::new());
            }
            tx.release_snapshot().await?;
            let server = DirectConnection::connect(direct, &DROPPING).await?;
            let mut dropped = Vec::new();
            for partition in partitions {
                match partition.remove(&server).await {
                    Ok(true) => dropped.push(partition.name),
                    Ok(false) => {}
                    Err(error) => {
                        let name = partition.name;
                        tracing::warn!(name, %error, "a partition could not be dropped: the next pass retries");
                    }
                }
            }
            Ok(dropped)
        })
        .await
    }

    /// Removes the entries of dropped hours. They are kept for two days, so that a clock that was
    /// set back makes no finished hour again. Returns how many.
    pub async fn hours_prune(&self) -> Result<u64, StoreError> {
        let sql = "-- hours_prune
            DELETE FROM sample_hours
             WHERE compacted_below = 2147483647 AND arrived_hour < samples_now() - interval '2 days'
               AND to_regclass('samples_open_' || to_char(arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')) IS NULL";
        let prune = async |tx: Tx| tx.execute(sql, &[]).await;
        self.run("hours_prune", Bulkhead::Maintenance, prune).await
    }

    /// Removes the shapes that nothing refers to any more: those that no chunk, no agent and no latest
    /// sample was seen to use for longer than samples are kept, or rollups if one has it. Returns how many.
    pub async fn shapes_prune(
        &self,
        samples: Duration,
        rollups: Duration,
    ) -> Result<u64, StoreError> {
        let unused = |rolled_up: bool| {
            format!(
                "-- shapes_prune
            DELETE FROM sample_shapes WHERE (host_no, shape) IN (
                SELECT s.host_no, s.shape FROM sample_shapes s
                 WHERE s.seen_on < (now() - make_interval(secs => $1))::date - 14 AND s.rolled_up = {rolled_up}
                   AND NOT EXISTS (SELECT FROM agent_state a WHERE a.host_no = s.host_no AND a.shape = s.shape)
                   AND NOT EXISTS (SELECT FROM host_vitals v WHERE v.host_no = s.host_no AND v.shape = s.shape)
                 LIMIT $2 FOR UPDATE SKIP LOCKED)"
            )
        };
        let removed = self.prune("shapes_prune", &unused(false), samples).await?;
        let kept = samples.max(rollups + ROLLUPS_PARTITION);
        Ok(removed + self.prune("shapes_prune", &unused(true), kept).await?)
    }

    /// Removes all events older than `retention`. Returns how many.
    pub async fn events_prune(&self, retention: Duration) -> Result<u64, StoreError> {
        let sql = "-- events_prune
            DELETE FROM agent_events WHERE id IN (
                SELECT id FROM agent_events
                 WHERE at < now() - make_interval(secs => $1) ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)";
        self.prune("events_prune", sql, retention).await
    }

    /// Removes all gaps that are as old as dropped samples. Returns how many.
    pub async fn gaps_prune(&self, retention: Duration) -> Result<u64, StoreError> {
        let sql = "-- gaps_prune
            DELETE FROM metric_gaps WHERE id IN (
                SELECT id FROM (SELECT id, recorded_at FROM metric_gaps ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED) oldest
                 WHERE recorded_at < now() - make_interval(secs => $1) - interval '2 days')";
        self.prune("gaps_prune", sql, retention).await
    }

    /// Removes batch after batch, each in a transaction of its own, until one is not full.
    async fn prune(
        &self,
        name: &'static str,
        sql: &str,
        retention: Duration,
    ) -> Result<u64, StoreError> {
        let seconds = retention.as_secs_f64();
        let params = [(&seconds as _, Type::FLOAT8), (&BATCH as _, Type::INT8)];
        let mut removed = 0;
        loop {
            let batch = async |tx: Tx| tx.execute(sql, &params).await;
            let rows = self.run(name, Bulkhead::Maintenance, batch).await?;
            removed += rows;
            if rows < BATCH.unsigned_abs() {
                return Ok(removed);
            }
        }
    }
}

impl Partition {
    /// Continues from the state that it is in. Returns whether it was dropped. A partition that
    /// is not too old is only finalized.
    async fn remove(&self, server: &DirectConnection) -> Result<bool, StoreError> {
        let Partition {
            schema,
            name,
            parent,
            ..
        } = self;
        let detach = format!("ALTER TABLE {schema}.{parent} DETACH PARTITION {schema}.{name}");
        if self.pending {
            server.execute(&format!("{detach} FINALIZE")).await?;
        } else if self.attached {
            server.execute(&format!("{detach} CONCURRENTLY")).await?;
        }
        if self.too_old {
            server
                .execute(&format!("DROP TABLE {schema}.{name}"))
                .await?;
        }
        Ok(self.too_old)
    }
}
