//! Arrival hours: made ahead, sealed when a newer one has begun, taken host by host, finished.

use super::{COMPACTION_STEP, HostOfHour};
use crate::{prelude::*, statements::locks};

/// `compacted_below` of an hour that all hosts are compacted of, or set aside.
const ALL: i32 = i32::MAX;

/// How many pages of a partition are looked at to find where a step ends.
const PAGES: f64 = 1_000.0;
const PAGE: f64 = 8_192.0;

/// The hours before the newest one that has begun. That one stays open, so that there is always one. An hour far ahead was made by a
/// clock that was ahead, and may have samples.
const PAST: &str = "-- hours_seal
    SELECT h.arrived_hour
      FROM sample_hours h, (SELECT max(arrived_hour) AS begun FROM sample_hours WHERE NOT sealed AND arrived_hour <= samples_now()) newest
     WHERE NOT h.sealed AND (h.arrived_hour < newest.begun OR newest.begun IS NOT NULL AND h.arrived_hour > samples_now() + interval '4 hours')
     ORDER BY h.arrived_hour";

record! {
    /// The oldest hour to compact.
    #[derive(Debug)]
    pub(super) struct OpenHour {
        pub(super) arrived_hour: Timestamp,
        pub(super) compacted_below: i32,
        bytes: i64,
    }
}

/// The hosts of an hour that one step takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hosts {
    pub(super) hour: Timestamp,
    pub(super) from: i32,
    pub(super) below: i32,
}

impl Store {
    /// Makes the partitions for the next hours, where they are missing. Returns how many were.
    pub async fn hours_create(&self) -> Result<i32> {
        let missing = "-- hours_create\nSELECT EXISTS (SELECT FROM sample_hours_missing)";
        let create = "-- hours_create\nSELECT sample_hours_ensure()";
        self.run("hours_create", Maintenance, async |tx| {
            if !tx.query_value::<bool>(missing, &[]).await? {
                return Ok(0);
            }
            tx.lock(locks::SCHEMA).await?;
            tx.query_value(create, &[]).await
        })
        .await
    }

    /// Seals the past hours, the oldest first. Returns how many.
    pub async fn hours_seal(&self) -> Result<usize> {
        let past = self.read("hours_seal", Maintenance, PAST, &[]);
        let past = past.await?;
        for row in &past {
            let hour: Timestamp = row.try_get(0)?;
            let seal = async |tx: Tx| tx.hour_seal(hour).await;
            self.run("hours_seal", Maintenance, seal).await?;
        }
        Ok(past.len())
    }
}

impl Tx {
    /// Waits for the writers of the hour; see `sample_hour_take`. The lock is a statement of its own, so that the
    /// UPDATE sees what they committed.
    async fn hour_seal(&self, hour: Timestamp) -> Result<()> {
        let params = params![hour];
        let lock = "-- hours_seal
            SELECT pg_advisory_xact_lock(1937137513, (extract(epoch FROM $1) / 3600)::integer)";
        self.execute(lock, &params).await?;
        let seal = "-- hours_seal\nUPDATE sample_hours SET sealed = true WHERE arrived_hour = $1";
        self.execute(seal, &params).await.map(drop)
    }

    pub(super) async fn hour_to_compact(&self) -> Result<Option<OpenHour>> {
        let sql = "-- compaction
            SELECT arrived_hour, compacted_below,
                   coalesce(pg_relation_size(to_regclass('samples_open_' || to_char(arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24'))), 0) AS bytes
              FROM sample_hours WHERE sealed AND compacted_below < $1 ORDER BY arrived_hour LIMIT 1";
        self.query_first(sql, &params![ALL]).await
    }

    /// The first host with rows that are not compacted.
    pub(super) async fn first_host(&self, of: &OpenHour) -> Result<Option<i32>> {
        let sql = "-- compaction
            SELECT min(host_no) FROM samples_open WHERE arrived_hour = $1 AND host_no >= $2";
        self.query_value(sql, &params![of.arrived_hour, of.compacted_below])
            .await
    }

    /// Whole hosts with about `rows` rows, but at least one.
    ///
    /// A host's rows are on as many pages as there are rows, so nearly every page has rows of every step. A full step
    /// takes a twentieth of a large hour, so that its pages are read twenty times, whatever their number is. Where it ends
    /// is read from some pages only: to count the rows in their order would read the whole hour once more.
    pub(super) async fn hosts_to_compact(&self, of: &OpenHour, rows: i64) -> Result<Hosts> {
        let (hour, from) = (of.arrived_hour, of.compacted_below);
        let Some(first) = self.first_host(of).await? else {
            return Ok(Hosts {
                hour,
                from,
                below: ALL,
            });
        };
        let pages = of.bytes as f64 / PAGE;
        let share = (PAGES / pages.max(1.0)).min(1.0);
        let within = (of.rows(rows) as f64 * share) as i64;
        let beyond = match within {
            0 => Some(first),
            _ => self.host_after(of, share, within).await?,
        };
        let below = beyond.map_or(ALL, |beyond| beyond.max(first.saturating_add(1)));
        Ok(Hosts { hour, from, below })
    }

    /// The host of the row that comes after so many rows, in a share of the pages.
    async fn host_after(&self, of: &OpenHour, share: f64, rows: i64) -> Result<Option<i32>> {
        let sql = "-- compaction
            SELECT host_no FROM samples_open TABLESAMPLE SYSTEM ($3) WHERE arrived_hour = $1 AND host_no >= $2
             ORDER BY host_no OFFSET $4 LIMIT 1";
        let percent = (100.0 * share) as f32;
        let params = params![of.arrived_hour, of.compacted_below, percent, rows];
        let row = self.query_opt(sql, &params).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    /// Moves `compacted_below`. From the commit on readers find these hosts' rows in the chunks.
    pub(super) async fn hosts_pass(&self, hosts: &Hosts) -> Result<()> {
        let sql = "-- compaction_step
            UPDATE sample_hours SET compacted_below = $3 WHERE arrived_hour = $1 AND compacted_below = $2 RETURNING true";
        let params = params![hosts.hour, hosts.from, hosts.below];
        self.query_one(sql, &params).await.map(drop)
    }

    /// Returns false if the note is gone: then the host's rows are in chunks already.
    pub(super) async fn note_remove(&self, host: HostOfHour) -> Result<bool> {
        let sql = "-- compaction_retry
            DELETE FROM hosts_set_aside WHERE arrived_hour = $1 AND host_no = $2";
        Ok(self.execute(sql, &params![host.hour, host.host_no]).await? == 1)
    }

    /// Notes that all samples of an hour are in chunks, where that is so now.
    pub(super) async fn hours_finish(&self) -> Result<()> {
        let sql = "-- compaction_step
            UPDATE sample_hours h SET finished_at = now(), finished_xid = pg_current_xact_id()::xid
             WHERE h.compacted_below = $1 AND h.finished_at IS NULL
               AND NOT EXISTS (SELECT FROM hosts_set_aside a WHERE a.arrived_hour = h.arrived_hour)";
        self.execute(sql, &params![ALL]).await.map(drop)
    }
}

impl OpenHour {
    /// How many rows a step should take.
    fn rows(&self, rows: i64) -> i64 {
        /// The bytes of a row without optional vitals.
        const ROW: i64 = 220;
        match rows >= COMPACTION_STEP {
            true => rows.max(self.bytes / ROW / 20),
            false => rows,
        }
    }
}
