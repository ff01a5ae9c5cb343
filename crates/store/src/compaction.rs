//! Compaction: the rows of a closed arrival hour become chunks and hourly rollups in one pass.
//!
//! **Closing an hour.** [`Store::hours_seal`] seals every arrival hour but the newest that has begun.
//! Writers hold the hour's advisory lock shared until their commit (`sample_hour_take`), and sealing takes
//! it exclusively. So after the commit that sealed an hour, no row is added to it.
//!
//! **Exactly once.** `sample_hours.compacted_below` is the number of the first host whose rows of the hour
//! are not compacted. Readers skip the rows of lower numbers. One step is one transaction: it reads the
//! rows of the next hosts once, writes their chunks, moves `compacted_below` past the hosts, and writes the
//! rollups. A reader sees all of it or nothing, and so does whoever continues after a kill. No row is
//! deleted; a finished hour is dropped as a partition (`retention`).
//!
//! **Rollups are exact.** A rollup is computed from all visible samples of its hour by `host_hour`, never added
//! to. A step computes every hour that its rows fall into, and the stored hour after each, whose counter
//! increases start at the last sample before it. Late samples are no special case: their chunk is merged
//! and their hour is computed again.
//!
//! **Concurrency.** A step runs under one advisory lock; an instance that finds it taken skips its turn.
//! Even without the lock, two steps could not take the same hosts: each moves `compacted_below` from the
//! value that it has read, or fails.
//!
//! **One host stops nobody.** A step that fails for its data or its time can be repeated with fewer rows, down
//! to one host. A host that fails alone is set aside: its rows are moved to the running hour, where
//! they stay visible and are tried again, and `rollups_set_aside` says why.
//!
//! **Rollups outlive samples.** Rows older than the oldest day of chunks are left out, as retention would
//! drop them at once. If a computed rollup covers less than the stored one, samples were dropped, and the
//! stored one stays.

mod chunks;
mod hours;
mod rollups;

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    error::StoreError,
    locks,
    pool::{Bulkhead, Store},
    record::record,
    tx::{Tx, TxLimits},
};

/// How many rows one step takes, about: it takes whole hosts. Their sort fits in `work_mem`, and to plan a step takes little
/// in comparison.
pub const COMPACTION_STEP: i64 = 120_000;

/// `compacted_below` of a finished hour.
const FINISHED: i32 = i32::MAX;

/// Long limits, because old chunks are read from disk and no client waits for a compaction.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(2),
    idle: Duration::from_secs(10),
    deadline: Duration::from_secs(75),
};

/// Settings of this transaction. Arrays are built in the order of sorted input, which hashing that spills to disk
/// would not keep. To remember results by whole arrays costs more than to compute them again.
const SETTINGS: &str = "-- compaction_step
    SELECT set_config('work_mem', '64MB', true), set_config('enable_hashagg', 'off', true), set_config('enable_memoize', 'off', true)";

/// The outcome of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionStep {
    /// How many rows were read.
    pub samples: i64,
    /// Whether there may be more to do. False if another instance holds the lock.
    pub more: bool,
}

record! {
    /// The first host of an hour that is not compacted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostOfHour {
        pub hour: Timestamp,
        pub host_no: i32,
        pub host_id: Uuid,
    }
}

record! {
    /// The oldest hour to compact.
    #[derive(Debug)]
    struct OpenHour {
        arrived_hour: Timestamp,
        compacted_below: i32,
    }
}

/// The hosts that one step takes.
struct Hosts {
    hour: Timestamp,
    /// All lower numbers are compacted.
    from: i32,
    below: i32,
}

impl Store {
    /// Compacts the next hosts of the oldest sealed hour, whole hosts with about `rows` rows.
    pub async fn compaction_step(&self, rows: i64) -> Result<CompactionStep, StoreError> {
        self.run_within(
            "compaction_step",
            Bulkhead::Maintenance,
            &LIMITS,
            async |tx| match tx.try_lock(locks::COMPACTION).await? {
                true => tx.compact(rows).await,
                false => Ok(CompactionStep::default()),
            },
        )
        .await
    }

    /// The host that a step begins with.
    pub async fn compaction_next(&self) -> Result<Option<HostOfHour>, StoreError> {
        self.run("compaction_next", Bulkhead::Maintenance, async |tx| {
            tx.host_to_compact().await
        })
        .await
    }

    /// Sets a host aside whose compaction failed: moves its rows to the running hour. Does nothing if
    /// the compaction has passed the host meanwhile.
    pub async fn compaction_set_aside(
        &self,
        of: HostOfHour,
        reason: &str,
    ) -> Result<(), StoreError> {
        let alone = Hosts {
            hour: of.hour,
            from: of.host_no,
            below: of.host_no.saturating_add(1),
        };
        self.run_within(
            "compaction_set_aside",
            Bulkhead::Maintenance,
            &LIMITS,
            async |tx| {
                tx.lock(locks::COMPACTION).await?;
                if tx.hosts_leave(&alone).await? {
                    tx.rows_move(&alone).await?;
                    tx.set_aside_note(&of, reason).await?;
                }
                Ok(())
            },
        )
        .await
    }
}

impl Tx {
    async fn compact(&self, rows: i64) -> Result<CompactionStep, StoreError> {
        let Some(hour) = self.hour_to_compact().await? else {
            return Ok(CompactionStep::default());
        };
        let hosts = self.hosts_to_compact(&hour, rows).await?;
        self.execute(SETTINGS, &[]).await?;
        let chunks = self.chunks_write(&hosts).await?;
        self.hosts_pass(&hosts).await?;
        self.rollups_write(&chunks).await?;
        self.set_aside_forget(&chunks.host_nos).await?;
        self.shapes_seen(&chunks).await?;
        Ok(CompactionStep {
            samples: chunks.samples,
            more: true,
        })
    }

    async fn host_to_compact(&self) -> Result<Option<HostOfHour>, StoreError> {
        let Some(hour) = self.hour_to_compact().await? else {
            return Ok(None);
        };
        let sql = "-- compaction_next
            SELECT $1 AS hour, v.host_no, v.host_id FROM host_vitals v
             WHERE v.host_no = (SELECT min(s.host_no) FROM samples_open s WHERE s.arrived_hour = $1 AND s.host_no >= $2)";
        let params = [
            (&hour.arrived_hour as _, Type::TIMESTAMPTZ),
            (&hour.compacted_below as _, Type::INT4),
        ];
        let row = self.query_opt(sql, &params).await?;
        row.as_ref().map(HostOfHour::from_row).transpose()
    }

    async fn hour_to_compact(&self) -> Result<Option<OpenHour>, StoreError> {
        let sql = "-- compaction
            SELECT arrived_hour, compacted_below FROM sample_hours
             WHERE sealed AND compacted_below < $1 ORDER BY arrived_hour LIMIT 1";
        let row = self.query_opt(sql, &[(&FINISHED, Type::INT4)]).await?;
        row.as_ref().map(OpenHour::from_row).transpose()
    }

    /// The hosts up to the one that has the last of `rows` rows, but at least one.
    async fn hosts_to_compact(&self, of: &OpenHour, rows: i64) -> Result<Hosts, StoreError> {
        let sql = "-- compaction_step
            SELECT min(s.host_no) AS first,
                   (SELECT b.host_no FROM samples_open b WHERE b.arrived_hour = $1 AND b.host_no >= $2
                     ORDER BY b.host_no OFFSET $3 LIMIT 1) AS beyond
              FROM samples_open s WHERE s.arrived_hour = $1 AND s.host_no >= $2";
        let params = [
            (&of.arrived_hour as _, Type::TIMESTAMPTZ),
            (&of.compacted_below as _, Type::INT4),
            (&rows as _, Type::INT8),
        ];
        let row = self.query_one(sql, &params).await?;
        let (first, beyond): (Option<i32>, Option<i32>) =
            (row.try_get("first")?, row.try_get("beyond")?);
        let below = match (first, beyond) {
            (Some(first), Some(beyond)) => beyond.max(first.saturating_add(1)),
            _ => FINISHED,
        };
        Ok(Hosts {
            hour: of.arrived_hour,
            from: of.compacted_below,
            below,
        })
    }

    /// Moves `compacted_below`. From the commit on readers find these hosts' rows in the chunks.
    async fn hosts_pass(&self, hosts: &Hosts) -> Result<(), StoreError> {
        let sql = "-- compaction_step
            UPDATE sample_hours SET compacted_below = $3 WHERE arrived_hour = $1 AND compacted_below = $2 RETURNING true";
        self.query_one(sql, &hosts.params()).await.map(drop)
    }
}

impl Hosts {
    fn params(&self) -> [crate::tx::Param<'_>; 3] {
        [
            (&self.hour as _, Type::TIMESTAMPTZ),
            (&self.from as _, Type::INT4),
            (&self.below as _, Type::INT4),
        ]
    }
}
