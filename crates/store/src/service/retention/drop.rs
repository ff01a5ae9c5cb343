//! Dropping partitions: those of finished arrival hours, of days of samples and of months of rollups that are too old.
//!
//! **Dropping must not block inserts.** A plain DROP or DETACH of a partition needs an ACCESS EXCLUSIVE lock on the parent
//! table. It would wait for every running query, and meanwhile all inserts would queue behind it. `DETACH PARTITION …
//! CONCURRENTLY` takes a weaker lock, and waits for the transactions that may still use the partition without blocking
//! others. No query uses the detached table any more, so it can be dropped at once. The statement cannot run inside a
//! transaction, so it needs a connection of its own ([`DirectConnection`]). Where there is none, behind a pooler, a plain
//! DETACH and DROP are tried with a lock timeout of [`PATIENCE`]: nothing queues for longer, and the next pass tries again.
//!
//! **Snapshots.** A detach waits for locks, not for snapshots. A reader whose snapshot is older than the end of an hour's
//! compaction does not see the chunks, so it needs the rows. An hour is dropped when no session has such a snapshot, but is
//! not kept for longer than a day.
//!
//! **Crash safety.** A pass that is killed leaves a partition in one of two intermediate states: detach pending, or detached
//! but not dropped. The next pass finds both in the catalog and continues: it finalizes a pending detach, and drops a
//! detached table. No state is kept elsewhere. What is due follows from the clock and the retention alone, so a changed
//! retention needs no migration: a partition that is within a longer retention again is finalized only, and
//! `partitions_create` attaches it again.
//!
//! **A clock that is wrong** must not drop history. A pass drops two days and two months at most, and none that the newest
//! sample is not past by the retention.
//!
//! **One pass at a time.** A transaction holds an advisory lock during the pass. It must not hold a snapshot, because the
//! concurrent detach waits for all older snapshots, including this one: hence `release_snapshot`.

use std::time::Duration;

use super::NEWEST;
use crate::{
    pg::{direct_connection::DirectConnection, tx::TxLimits, url::DatabaseUrl},
    prelude::*,
    statements::locks,
};

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

/// How long a plain detach waits for the lock, while all others wait behind it.
const PATIENCE: Duration = Duration::from_millis(200);

/// The limits of a transaction that detaches and drops one partition.
const DROPPING_PLAINLY: TxLimits = TxLimits {
    statement: Duration::from_secs(5),
    lock: PATIENCE,
    idle: Duration::from_secs(5),
    deadline: Duration::from_secs(15),
};

/// The partitions that are too old by the clock, and those whose detach is to be finalized, oldest first. It includes detached tables, which a
/// killed pass left. The day before the retention is kept too: with it the first hour that is, whose counter increases start at
/// its last sample. A month of rollups is kept as long as samples of it may exist.
fn expired() -> String {
    format!(
        "-- partitions_drop
    WITH kind AS (
        SELECT parent, pattern, form, unit, kept
          FROM (VALUES ('sample_chunks', '^sample_chunks_(\\d{{8}})$', 'YYYYMMDD', 'day', make_interval(secs => $1 + 86400)),
                       ('host_rollups', '^host_rollups_(\\d{{6}})$', 'YYYYMM', 'month', make_interval(secs => greatest($2, $1 + 5 * 86400))))
               AS kind(parent, pattern, form, unit, kept)),
    partition AS (
        SELECT c.relname AS name, kind.parent, i.inhrelid IS NOT NULL AS attached, coalesce(i.inhdetachpending, false) AS pending,
               to_date(substring(c.relname FROM kind.pattern), kind.form)::timestamp AT TIME ZONE 'UTC' AS begins,
               date_trunc(kind.unit, now() - kind.kept, 'UTC') AS kept_by_clock,
               date_trunc(kind.unit, {NEWEST} - kind.kept, 'UTC') AS kept_by_samples
          FROM kind
          JOIN pg_class p ON p.oid = kind.parent::regclass
          JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND c.relname ~ kind.pattern
          LEFT JOIN pg_inherits i ON i.inhrelid = c.oid)
    SELECT quote_ident(current_schema()) AS schema, name, parent, attached, pending, begins < kept_by_clock AS old,
           begins < kept_by_samples AND row_number() OVER (PARTITION BY parent ORDER BY begins) <= 2 AS dropped
      FROM partition
     WHERE pending OR begins < kept_by_clock
     ORDER BY begins"
    )
}

/// The partitions of finished arrival hours that no snapshot needs, oldest first. A snapshot whose xmin is not past the transaction that
/// finished the hour may have been taken before.
const FINISHED: &str = "-- hours_drop
    SELECT quote_ident(current_schema()) AS schema, c.relname AS name, 'samples_open' AS parent, i.inhrelid IS NOT NULL AS attached,
           coalesce(i.inhdetachpending, false) AS pending, true AS old, true AS dropped
      FROM sample_hours h
      JOIN pg_class p ON p.oid = 'samples_open'::regclass
      JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r'
           AND c.relname = 'samples_open_' || to_char(h.arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')
      LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
     WHERE h.finished_at < now() - interval '1 day'
        OR h.finished_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_stat_activity a
                            WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
                              AND age(a.backend_xmin) >= age(h.finished_xid))
     ORDER BY h.arrived_hour";

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
        /// By the clock.
        old: bool,
        /// Whether this pass drops it.
        dropped: bool,
    }
}

impl Store {
    /// Drops the days of samples and the months of rollups that are beyond their retention. Returns their names: none if
    /// another instance holds the lock.
    pub async fn partitions_drop(
        &self,
        direct: &DatabaseUrl,
        samples: Duration,
        rollups: Duration,
    ) -> Result<Vec<String>> {
        let params = params![samples.as_secs_f64(), rollups.as_secs_f64()];
        let (name, sql) = ("partitions_drop", expired());
        self.remove_all(name, &sql, &params, direct).await
    }

    /// Drops the arrival hours that are compacted, like `partitions_drop`.
    pub async fn hours_drop(&self, direct: &DatabaseUrl) -> Result<Vec<String>> {
        self.remove_all("hours_drop", FINISHED, &[], direct).await
    }

    /// Drops the partitions that a query returns.
    async fn remove_all(
        &self,
        name: &'static str,
        sql: &str,
        params: &[Param<'_>],
        direct: &DatabaseUrl,
    ) -> Result<Vec<String>> {
        let (mut dropped, plainly) = self
            .run_within(name, Maintenance, &HOLDING, async |tx| {
                if !tx.try_lock(locks::RETENTION).await? {
                    return Ok(Default::default());
                }
                let due = due(tx.query_all(sql, params).await?);
                if due.is_empty() {
                    return Ok(Default::default());
                }
                tx.release_snapshot().await?;
                Ok(match DirectConnection::connect(direct, &DROPPING).await {
                    Ok(server) => (remove_directly(&server, due).await, Vec::new()),
                    Err(error) => {
                        tracing::debug!(%error, "no direct connection");
                        (Vec::new(), due)
                    }
                })
            })
            .await?;
        for partition in plainly {
            if self.remove_plainly(name, &partition).await? {
                dropped.push(partition.name);
            }
        }
        Ok(dropped)
    }

    /// Returns whether it was dropped.
    async fn remove_plainly(&self, name: &'static str, partition: &Partition) -> Result<bool> {
        let statements = partition.statements("").join("; ");
        let removed = self
            .run_within(name, Maintenance, &DROPPING_PLAINLY, async |tx| {
                if !tx.try_lock(locks::RETENTION).await? {
                    return Ok(false);
                }
                tx.batch(&statements).await?;
                Ok(partition.dropped)
            })
            .await;
        match removed {
            Err(error) if error.fewer_may_succeed() => {
                partition.warn(&error);
                Ok(false)
            }
            removed => removed,
        }
    }
}

/// What this pass does, and a warning about the rest.
fn due(found: Vec<Partition>) -> Vec<Partition> {
    let kept = found
        .iter()
        .filter(|partition| partition.old && !partition.dropped);
    let kept: Vec<&str> = kept.map(|partition| &*partition.name).collect();
    if let (Some(first), Some(last)) = (kept.first(), kept.last()) {
        let partitions = kept.len();
        tracing::warn!(
            partitions,
            first,
            last,
            "history is older than the retention and not dropped yet: a pass drops two days at most, and none that the newest sample is not past; the server's clock may be wrong"
        );
    }
    let acts = |partition: &Partition| partition.dropped || partition.pending;
    found.into_iter().filter(acts).collect()
}

/// Returns the names of those that were dropped.
async fn remove_directly(server: &DirectConnection, partitions: Vec<Partition>) -> Vec<String> {
    let mut dropped = Vec::new();
    for partition in partitions {
        match partition.remove(server).await {
            Ok(()) if partition.dropped => dropped.push(partition.name),
            Ok(()) => {}
            Err(error) => partition.warn(&error),
        }
    }
    dropped
}

impl Partition {
    /// Continues from the state that it is in: each statement commits.
    async fn remove(&self, server: &DirectConnection) -> Result<()> {
        for statement in self.statements(" CONCURRENTLY") {
            server.execute(&statement).await?;
        }
        Ok(())
    }

    /// A partition that is not dropped is only finalized.
    fn statements(&self, how: &str) -> Vec<String> {
        let Partition {
            schema,
            name,
            parent,
            ..
        } = self;
        let detach = format!("ALTER TABLE {schema}.{parent} DETACH PARTITION {schema}.{name}");
        let detach = match (self.pending, self.attached) {
            (true, _) => Some(format!("{detach} FINALIZE")),
            (false, true) => Some(format!("{detach}{how}")),
            (false, false) => None,
        };
        let drop = self.dropped.then(|| format!("DROP TABLE {schema}.{name}"));
        detach.into_iter().chain(drop).collect()
    }

    fn warn(&self, error: &StoreError) {
        let name = &*self.name;
        tracing::warn!(name, %error, "a partition could not be dropped: the next pass retries");
    }
}
