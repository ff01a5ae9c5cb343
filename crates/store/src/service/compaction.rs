//! Compaction: the rows of a sealed arrival hour become chunks and hourly rollups in one pass.
//!
//! **Sealing an hour.** [`Store::hours_seal`] seals every arrival hour but the newest that has begun. Writers hold the
//! hour's advisory lock shared until their commit (`sample_hour_take`), and sealing takes it exclusively. So after the
//! commit that sealed an hour, no row is added to it.
//!
//! **Exactly once.** `sample_hours.compacted_below` is the number of the first host whose rows of the hour are not
//! compacted. Readers skip the rows of lower numbers. One step is one transaction: it reads the rows of the next hosts,
//! writes their chunks and rollups, and moves `compacted_below` past the hosts. A reader sees all of it or nothing, and so
//! does a step that continues after a kill. No row is deleted; a finished hour is dropped as a partition (`retention`).
//!
//! **Bounded memory.** A step reads its rows by a cursor, in the order of hosts and times, and works on batches that end with
//! an hour of a host (`rows`). Packing and the figures are plain functions over such a batch (`batch`, and `history`).
//!
//! **Rollups are exact.** A rollup is computed from all chunks of its hour, never added to. A step computes every hour that
//! its rows fall into, and the stored hour after each, whose counter increases start at the last sample before it.
//! Late samples are no special case: their chunk is merged and their hour is computed again.
//!
//! **Concurrency.** A step runs under one advisory lock; an instance that finds it taken skips its turn. Even without the
//! lock, two steps could not take the same hosts: each moves `compacted_below` from the value that it has read, or fails.
//!
//! **One host does not stop the others.** A step that fails can be repeated with fewer rows, down to one host. A host that fails alone
//! is set aside by a note in `hosts_set_aside`, in the transaction that passes it: readers take its rows from where they are,
//! and it is tried again later.
//!
//! **Rollups outlive samples.** Rows older than the oldest day of chunks are left out, as retention would drop them at once.
//! A newer day that is missing is an error. If a computed rollup covers less than the stored one, samples were
//! dropped, and the stored one stays.

mod batch;
mod hours;
mod lists;
mod rows;
mod stored;
mod write;

use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::{history::Damaged, pg::tx::TxLimits, prelude::*, statements::locks};
use batch::compute;
use hours::Hosts;
use lists::Lists;
use rows::Rows;

/// How many rows one step takes at least, about: it takes whole hosts, and more of an hour that has millions.
pub const COMPACTION_STEP: i64 = 120_000;

/// Long limits, because old chunks are read from disk and no client waits for a compaction. The transaction is idle while a
/// batch is computed.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(2),
    idle: Duration::from_secs(60),
    deadline: Duration::from_secs(75),
};

/// Waits for a step of another instance.
const NOTE_LIMITS: TxLimits = TxLimits {
    lock: LIMITS.statement,
    ..LIMITS
};

/// How many notes are read at once.
const MOST_NOTES: i64 = 1_000;

/// The outcome of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionStep {
    /// How many samples were compacted.
    pub samples: i64,
    /// Whether there may be more to do. False if another instance holds the lock.
    pub more: bool,
}

record! {
    /// A host's rows of an arrival hour.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostOfHour {
        pub hour: Timestamp,
        pub host_no: i32,
    }
}

/// What a step takes.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// The next hosts of the oldest hour, with about so many rows.
    Next(i64),
    /// A host that was set aside.
    Again(HostOfHour),
}

/// What a step did.
#[derive(Debug, Default)]
struct Done {
    step: CompactionStep,
    /// The lists of parts that it met, and that were not seen for a week.
    unseen: Vec<Uuid>,
}

impl Store {
    /// Compacts the next hosts of the oldest sealed hour, whole hosts with about `rows` rows.
    pub async fn compaction_step(&self, rows: i64) -> Result<CompactionStep> {
        self.work("compaction_step", Work::Next(rows)).await
    }

    /// Compacts a host that was set aside, and removes its note.
    pub async fn compaction_retry(&self, host: HostOfHour) -> Result<CompactionStep> {
        self.work("compaction_retry", Work::Again(host)).await
    }

    /// The host that a step begins with.
    pub async fn compaction_next(&self) -> Result<Option<HostOfHour>> {
        self.run("compaction_next", Maintenance, async |tx| {
            let Some(open) = tx.hour_to_compact().await? else {
                return Ok(None);
            };
            let (hour, first) = (open.arrived_hour, tx.first_host(&open).await?);
            Ok(first.map(|host_no| HostOfHour { hour, host_no }))
        })
        .await
    }

    /// Sets a host aside whose compaction failed. Does nothing if the compaction has passed the host meanwhile.
    pub async fn compaction_set_aside(&self, host: HostOfHour, reason: &str) -> Result<()> {
        let sql = "-- compaction_set_aside
            WITH passed AS (
                UPDATE sample_hours SET compacted_below = $2 + 1
                 WHERE arrived_hour = $1 AND sealed AND compacted_below <= $2 RETURNING true)
            INSERT INTO hosts_set_aside AS known (arrived_hour, host_no, reason)
            SELECT $1, $2, $3
             WHERE EXISTS (SELECT FROM passed)
                OR EXISTS (SELECT FROM hosts_set_aside a WHERE a.arrived_hour = $1 AND a.host_no = $2)
            ON CONFLICT (arrived_hour, host_no) DO UPDATE
               SET tried_at = now(), tries = known.tries + 1, reason = excluded.reason";
        let name = "compaction_set_aside";
        self.run_within(name, Maintenance, &NOTE_LIMITS, async |tx| {
            tx.lock(locks::COMPACTION).await?;
            let params = params![host.hour, host.host_no, reason];
            tx.execute(sql, &params).await.map(drop)
        })
        .await
    }

    /// The hosts that are set aside, those first that have waited longest for another try.
    pub async fn hosts_set_aside(&self) -> Result<Vec<HostOfHour>> {
        let sql = "-- hosts_set_aside
            SELECT arrived_hour AS hour, host_no FROM hosts_set_aside ORDER BY tried_at, arrived_hour, host_no LIMIT $1";
        let params = params![MOST_NOTES];
        self.read_all("hosts_set_aside", Maintenance, sql, &params)
            .await
    }

    async fn work(&self, name: &'static str, work: Work) -> Result<CompactionStep> {
        let done = self
            .run_within(name, Maintenance, &LIMITS, async |tx| {
                match tx.try_lock(locks::COMPACTION).await? {
                    true => Box::pin(self.take(&tx, work)).await,
                    false => Ok(Done::default()),
                }
            })
            .await?;
        self.lists_seen(&done.unseen).await?;
        Ok(done.step)
    }

    async fn take(&self, tx: &Tx, work: Work) -> Result<Done> {
        let done = match work {
            Work::Next(rows) => {
                let Some(open) = tx.hour_to_compact().await? else {
                    return Ok(Done::default());
                };
                let hosts = tx.hosts_to_compact(&open, rows).await?;
                let done = self.compact(tx, &hosts).await?;
                tx.hosts_pass(&hosts).await?;
                done
            }
            Work::Again(host) => match tx.note_remove(host).await? {
                true => self.compact(tx, &host.alone()).await?,
                false => return Ok(Done::default()),
            },
        };
        tx.hours_finish().await?;
        Ok(done)
    }

    /// Turns the rows of these hosts into chunks and rollups.
    async fn compact(&self, tx: &Tx, hosts: &Hosts) -> Result<Done> {
        let mut rows = Rows::open(tx, hosts).await?;
        let (mut lists, mut samples) = (Lists::default(), 0);
        while let Some(batch) = rows.next().await? {
            samples += batch.samples();
            let fresh = off_thread(move || batch.chunks()).await?;
            let stored = tx.stored_chunks(&fresh).await?;
            lists.read(tx, &fresh, &stored).await?;
            let known = lists.known();
            let computed = off_thread(move || compute(fresh, stored, &known)).await?;
            self.lists_store(lists.unknown(&computed.own_lists)).await?;
            tx.chunks_write(&computed.chunks).await?;
            tx.rollups_write(&computed.rollups).await?;
        }
        Ok(Done {
            step: CompactionStep {
                samples,
                more: true,
            },
            unseen: lists.into_unseen(),
        })
    }
}

impl HostOfHour {
    fn alone(self) -> Hosts {
        Hosts {
            hour: self.hour,
            from: self.host_no,
            below: self.host_no.saturating_add(1),
        }
    }
}

/// Runs a computation where it delays no other task. A panic is an error of these rows, so that it stops no other host.
async fn off_thread<T: Send + 'static>(
    computation: impl FnOnce() -> Result<T, Damaged> + Send + 'static,
) -> Result<T> {
    match spawn_blocking(computation).await {
        Ok(outcome) => Ok(outcome?),
        Err(error) => Err(StoreError::Damaged(error.to_string())),
    }
}

/// Microseconds since the epoch as the database has them.
fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}
