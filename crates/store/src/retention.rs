//! How long history is kept: partitions made ahead, dropped when they are too old,
//! and gaps removed with the samples that they stood among.
//!
//! Dropping blocks nobody who inserts: a partition is detached concurrently, which
//! waits for those who still use it without a lock that others would queue behind,
//! and dropped when it is nobody's. Whoever is killed half way leaves a detached
//! table, or a detach to be finalized, and the next pass goes on from there. What is
//! due is derived from the clock and the retention at each pass, so that a changed
//! retention needs nothing else.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::direct_connection::DirectConnection;
use crate::error::StoreError;
use crate::locks;
use crate::pool::{Bulkhead, Store};
use crate::tx::{Tx, TxLimits};
use crate::url::DatabaseUrl;

/// Of the transaction that holds the lock while partitions are dropped.
const HOLDING: TxLimits = TxLimits {
    statement: Duration::from_secs(5),
    lock: Duration::from_secs(2),
    idle: Duration::from_mins(15),
    deadline: Duration::from_mins(15),
};

/// Of each statement that drops. Waiting for a partition's last readers holds up
/// nobody but the next of them.
const DROPPING: TxLimits = TxLimits {
    statement: Duration::from_mins(2),
    lock: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    deadline: Duration::from_mins(15),
};

/// Detached tables count as well: somebody did not come to drop them. A day is kept
/// until its hours have been rolled up, and the first of the next day, which counts
/// from its last sample.
const EXPIRED: &str = "-- partitions_drop
    WITH partition AS (
        SELECT c.relname AS name, kind.parent, i.inhrelid IS NOT NULL AS attached,
               coalesce(i.inhdetachpending, false) AS pending, kind.kept_from,
               to_date(substring(c.relname FROM kind.pattern), kind.form)::timestamp AT TIME ZONE 'UTC' AS begins, kind.unit
          FROM (VALUES ('host_metrics', '^host_metrics_(\\d{8})$', 'YYYYMMDD', interval '1 day',
                        date_trunc('day', now() - make_interval(secs => $1), 'UTC') - interval '1 day'),
                       ('host_metrics_hourly', '^host_metrics_hourly_(\\d{6})$', 'YYYYMM', interval '1 month',
                        date_trunc('month', now() - make_interval(secs => $2), 'UTC')))
               AS kind(parent, pattern, form, unit, kept_from)
          JOIN pg_class p ON p.oid = kind.parent::regclass
          JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND c.relname ~ kind.pattern
          LEFT JOIN pg_inherits i ON i.inhrelid = c.oid)
    SELECT name, parent, attached, pending, too_old
      FROM partition
     CROSS JOIN LATERAL (
           SELECT begins < kept_from
              AND NOT EXISTS (SELECT FROM rollups_due WHERE hour BETWEEN begins AND begins + unit)
              AND NOT EXISTS (SELECT FROM rollup_changes WHERE hour BETWEEN begins AND begins + unit) AS too_old) judged
     WHERE pending OR too_old
     ORDER BY begins";

#[derive(Debug)]
struct Partition {
    name: String,
    parent: String,
    attached: bool,
    /// Somebody began to detach it.
    pending: bool,
    too_old: bool,
}

impl Store {
    /// Makes the partitions that samples may fall into; how many were missing.
    pub async fn partitions_create(&self, retention: Duration) -> Result<i32, StoreError> {
        let lock = "-- partitions_create\nSELECT pg_advisory_xact_lock($1)";
        let sql = "-- partitions_create\nSELECT metrics_partitions_ensure(make_interval(secs => $1)) AS made";
        let seconds = retention.as_secs_f64();
        self.run("partitions_create", Bulkhead::Watch, |tx| async move {
            tx.execute(lock, &[(&locks::PARTITIONS, Type::INT8)])
                .await?;
            let row = tx.query_one(sql, &[(&seconds, Type::FLOAT8)]).await?;
            Ok(row.try_get("made")?)
        })
        .await
    }

    /// Drops the days of samples and the months of rollups that are older than their
    /// retentions allow, over a direct connection. Their names; none where somebody
    /// else is at it.
    pub async fn partitions_drop(
        &self,
        direct: &DatabaseUrl,
        samples: Duration,
        rollups: Duration,
    ) -> Result<Vec<String>, StoreError> {
        self.run_within("partitions_drop", Bulkhead::Watch, &HOLDING, async |tx| {
            if !lock(&tx).await? {
                return Ok(Vec::new());
            }
            let partitions = expired(&tx, samples, rollups).await?;
            if partitions.is_empty() {
                return Ok(Vec::new());
            }
            tx.release_snapshot().await?;
            let server = DirectConnection::connect(direct, &DROPPING).await?;
            let mut dropped = Vec::new();
            for partition in partitions {
                if partition.remove(&server).await? {
                    dropped.push(partition.name);
                }
            }
            Ok(dropped)
        })
        .await
    }

    /// Removes the gaps among samples that are no longer kept, some at a time.
    pub async fn gaps_prune(&self, retention: Duration) -> Result<u64, StoreError> {
        let sql = "-- gaps_prune
            DELETE FROM metric_gaps WHERE id IN (
                SELECT id FROM (SELECT id, recorded_at FROM metric_gaps ORDER BY id LIMIT 10000) oldest
                 WHERE recorded_at < now() - make_interval(secs => $1) - interval '2 days')";
        let seconds = retention.as_secs_f64();
        self.run("gaps_prune", Bulkhead::Watch, |tx| async move {
            tx.execute(sql, &[(&seconds, Type::FLOAT8)]).await
        })
        .await
    }
}

async fn expired(
    tx: &Tx,
    samples: Duration,
    rollups: Duration,
) -> Result<Vec<Partition>, StoreError> {
    let (samples, rollups) = (samples.as_secs_f64(), rollups.as_secs_f64());
    let params = [(&samples as _, Type::FLOAT8), (&rollups as _, Type::FLOAT8)];
    let rows = tx.query(EXPIRED, &params).await?;
    rows.iter().map(Partition::from_row).collect()
}

async fn lock(tx: &Tx) -> Result<bool, StoreError> {
    let sql = "-- partitions_drop\nSELECT pg_try_advisory_xact_lock($1)";
    let row = tx
        .query_one(sql, &[(&locks::RETENTION, Type::INT8)])
        .await?;
    Ok(row.try_get(0)?)
}

impl Partition {
    fn from_row(row: &Row) -> Result<Partition, StoreError> {
        Ok(Partition {
            name: row.try_get("name")?,
            parent: row.try_get("parent")?,
            attached: row.try_get("attached")?,
            pending: row.try_get("pending")?,
            too_old: row.try_get("too_old")?,
        })
    }

    /// Goes on from wherever a predecessor got to; whether the partition is gone. One
    /// whose retention was lengthened meanwhile is only freed, to be attached again.
    async fn remove(&self, server: &DirectConnection) -> Result<bool, StoreError> {
        let Partition { name, parent, .. } = self;
        let detach = format!("ALTER TABLE {parent} DETACH PARTITION {name}");
        if self.pending {
            server.execute(&format!("{detach} FINALIZE")).await?;
        } else if self.attached {
            server.execute(&format!("{detach} CONCURRENTLY")).await?;
        }
        if self.too_old {
            server.execute(&format!("DROP TABLE {name}")).await?;
        }
        Ok(self.too_old)
    }
}
