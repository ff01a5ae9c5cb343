//! The rows of an arrival hour, read by a cursor in the order of hosts and times.
//!
//! A batch ends with an hour of a host, so that a chunk is written once, however many rows a host has. The samples of an
//! agent in one hour are bounded, and so is the memory of a batch.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{batch::Fresh, hours::Hosts};
use crate::{
    history::{
        Damaged,
        chunk::{HOUR, LooseSample, chunks},
    },
    prelude::*,
    service::samples::SCALARS,
};

/// How many rows are fetched at once.
const FETCH: usize = 2_000;

/// How many values a batch has, about: 20,000 rows with a file system each.
const BATCH: usize = 400_000;

/// No index scan, although its first rows would come sooner. The pages of a partition are read in their order, each once, and
/// the rows are sorted. By an index on hosts each page would be read once for every host that has rows on it.
const READ: &str = "-- compaction_step
    SELECT set_config('enable_indexscan', 'off', true), set_config('cursor_tuple_fraction', '1', true), set_config('work_mem', '64MB', true)";

/// From now on only a few rows are looked up, by their keys.
const LOOK_UP: &str = "-- compaction_step
    SELECT set_config('enable_indexscan', 'on', true)";

const NEXT: &str = "-- compaction_step\nFETCH FORWARD 2000 FROM compacted";

/// The columns before the scalars are at these places.
static COLUMNS: LazyLock<String> = LazyLock::new(|| {
    let scalars = SCALARS.iter().map(|scalar| scalar.name);
    let first = ["host_no", "agent_no", "sampled_at", "seq", "shape", "parts"];
    first
        .into_iter()
        .chain(scalars)
        .collect::<Vec<_>>()
        .join(", ")
});

pub(super) struct Rows<'a> {
    tx: &'a Tx,
    /// The first rows of the next batch.
    rest: Vec<HostRow>,
    ended: bool,
}

struct HostRow {
    host_no: i32,
    sample: LooseSample,
}

/// Rows of whole hours of hosts.
pub(super) struct Batch(Vec<HostRow>);

impl<'a> Rows<'a> {
    /// Leaves out the rows of days that retention has dropped.
    pub(super) async fn open(tx: &'a Tx, hosts: &Hosts) -> Result<Rows<'a>> {
        let columns = &*COLUMNS;
        let cursor = format!(
            "-- compaction_step
            DECLARE compacted NO SCROLL CURSOR FOR
            SELECT {columns} FROM samples_open
             WHERE arrived_hour = '{hour}' AND host_no >= {from} AND host_no < {below}
               AND sampled_at >= coalesce((SELECT min(day)::timestamp AT TIME ZONE 'UTC' FROM sample_days WHERE NOT detaching), '-infinity')
             ORDER BY host_no, sampled_at",
            hour = hosts.hour,
            from = hosts.from,
            below = hosts.below,
        );
        tx.execute(READ, &[]).await?;
        tx.execute(&cursor, &[]).await?;
        tx.execute(LOOK_UP, &[]).await?;
        Ok(Rows {
            tx,
            rest: Vec::new(),
            ended: false,
        })
    }

    /// The next batch, if there are rows.
    pub(super) async fn next(&mut self) -> Result<Option<Batch>> {
        let mut batch = std::mem::take(&mut self.rest);
        let mut values: usize = batch.iter().map(HostRow::values).sum();
        while !self.ended {
            let rows = self.tx.query(NEXT, &[]).await?;
            self.ended = rows.len() < FETCH;
            for row in &rows {
                let row = HostRow::read(row)?;
                values += row.values();
                batch.push(row);
            }
            if values >= BATCH
                && let Some(end) = end_of_hour(&batch)
            {
                self.rest = batch.split_off(end);
                break;
            }
        }
        Ok((!batch.is_empty()).then_some(Batch(batch)))
    }
}

/// Where the last hour of a host begins, if it is not the first.
fn end_of_hour(batch: &[HostRow]) -> Option<usize> {
    let last = batch.last()?.hour();
    let before = batch.iter().rposition(|row| row.hour() != last)?;
    Some(before + 1)
}

impl HostRow {
    fn read(row: &Row) -> Result<HostRow> {
        let sampled_at: Timestamp = row.try_get(2)?;
        let sample = LooseSample {
            agent_no: row.try_get(1)?,
            shape: row.try_get(4)?,
            at_micros: sampled_at.as_microsecond(),
            seq: row.try_get(3)?,
            reals: [
                row.try_get(6)?,
                row.try_get(7)?,
                row.try_get(8)?,
                row.try_get(9)?,
            ],
            memory_used_bytes: row.try_get(10)?,
            memory_total_bytes: row.try_get(11)?,
            swap_used_bytes: row.try_get(12)?,
            swap_total_bytes: row.try_get(13)?,
            uptime_seconds: row.try_get(14)?,
            process_count: row.try_get(15)?,
            network_rx_bytes: row.try_get(16)?,
            network_tx_bytes: row.try_get(17)?,
            parts: row.try_get(5)?,
        };
        let host_no = row.try_get(0)?;
        Ok(HostRow { host_no, sample })
    }

    fn hour(&self) -> (i32, i64) {
        (self.host_no, self.sample.at_micros.div_euclid(HOUR))
    }

    fn values(&self) -> usize {
        16 + self.sample.parts.len()
    }
}

impl Batch {
    pub(super) fn samples(&self) -> i64 {
        self.0.len() as i64
    }

    pub(super) fn chunks(self) -> Result<Fresh, Damaged> {
        let mut hosts: BTreeMap<i32, Vec<LooseSample>> = BTreeMap::new();
        for row in self.0 {
            hosts.entry(row.host_no).or_default().push(row.sample);
        }
        let of = |(host_no, rows)| Ok((host_no, chunks(rows)?));
        hosts.into_iter().map(of).collect()
    }
}
