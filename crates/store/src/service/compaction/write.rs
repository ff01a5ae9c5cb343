//! Chunks and rollups, written as columns: one statement for those of a batch.

use std::{mem, sync::LazyLock};

use tokio_postgres::types::ToSql;

use super::time;
use crate::{
    history::{
        chunk::{Chunk, ChunkKey, HOUR},
        pack::{Packed, pack},
        rollup::{Rollup, Span},
    },
    prelude::*,
    service::samples::SCALARS,
    statements::params::Element,
};

/// How many parameters come before the scalars.
const BEFORE: usize = 15;

/// Each value has one array for all chunks, of which a chunk takes a slice: an array of arrays could only have arrays of one
/// length.
static WRITE_CHUNKS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = SCALARS.iter().map(|scalar| scalar.name).collect();
    let slice = |n: usize| format!("(${})[k.begins:k.ends]", BEFORE + n);
    let slices: Vec<String> = (1..=names.len()).map(slice).collect();
    format!(
        "-- compaction_step
        INSERT INTO sample_chunks (host_no, hour, agent_no, shape, first_seq, samples, at, seqs, parts_series, parts_steps, {})
        SELECT k.host_no, k.hour, k.agent_no, k.shape, k.first_seq, k.ends - k.begins + 1, ($13)[k.begins:k.ends],
               CASE WHEN k.seqs_begin <= k.seqs_end THEN ($14)[k.seqs_begin:k.seqs_end] END,
               CASE WHEN k.series_begin <= k.series_end THEN ($15)[k.series_begin:k.series_end] END,
               CASE WHEN k.series_begin <= k.series_end THEN k.steps END, {}
          FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
               AS k(host_no, hour, agent_no, shape, first_seq, steps, begins, ends, seqs_begin, seqs_end, series_begin, series_end)
        ON CONFLICT (host_no, hour, agent_no, shape) DO UPDATE
           SET first_seq = excluded.first_seq, samples = excluded.samples, at = excluded.at, seqs = excluded.seqs,
               parts_series = excluded.parts_series, parts_steps = excluded.parts_steps, {}",
        names.join(", "),
        slices.join(", "),
        replaced(&names),
    )
});

/// A chunk as it is stored.
pub(super) struct HostChunk {
    host_no: i32,
    key: ChunkKey,
    first_seq: i64,
    /// Empty if the numbers are consecutive.
    seqs: Vec<i64>,
    /// Without parts.
    chunk: Chunk,
    packed: Packed,
}

pub(super) struct HostRollup {
    pub(super) host_no: i32,
    pub(super) hour: i64,
    pub(super) figures: Rollup,
}

/// The assignments of ON CONFLICT DO UPDATE: every column gets its new value.
fn replaced<T: AsRef<str>>(names: &[T]) -> String {
    let replaced = names
        .iter()
        .map(|name| format!("{0} = excluded.{0}", name.as_ref()));
    replaced.collect::<Vec<_>>().join(", ")
}

impl HostChunk {
    pub(super) fn new(host_no: i32, key: ChunkKey, mut chunk: Chunk) -> HostChunk {
        let (first_seq, seqs) = chunk.stored_seqs();
        chunk.uptime_seconds = chunk.stored_uptime();
        HostChunk {
            host_no,
            key,
            first_seq,
            seqs: seqs.unwrap_or_default(),
            packed: pack(&mem::take(&mut chunk.parts)),
            chunk,
        }
    }
}

/// One value of all chunks, chunk after chunk.
fn flat<T: Copy>(chunks: &[HostChunk], of: impl Fn(&HostChunk) -> &[T]) -> Vec<T> {
    chunks.iter().flat_map(of).copied().collect()
}

/// The places at which the slices of such an array begin and end.
fn slices(chunks: &[HostChunk], length: impl Fn(&HostChunk) -> usize) -> (Vec<i32>, Vec<i32>) {
    let place = |length: usize| i32::try_from(length).unwrap_or(i32::MAX);
    let mut end = 0;
    let slice = |chunk: &HostChunk| {
        let begin = end + 1;
        end += length(chunk);
        (place(begin), place(end))
    };
    chunks.iter().map(slice).unzip()
}

impl Tx {
    pub(super) async fn chunks_write(&self, chunks: &[HostChunk]) -> Result<()> {
        let (begins, ends) = slices(chunks, |one| one.chunk.at.len());
        let (seqs_begin, seqs_end) = slices(chunks, |one| one.seqs.len());
        let (series_begin, series_end) = slices(chunks, |one| one.packed.series.len());
        let steps: Vec<&[u8]> = chunks.iter().map(|one| &*one.packed.steps).collect();
        let columns = Arrays::default()
            .column(chunks, |one| one.host_no)
            .column(chunks, |one| hour(one.key.hour))
            .column(chunks, |one| one.key.agent_no)
            .column(chunks, |one| one.key.shape)
            .column(chunks, |one| one.first_seq)
            .value(steps)
            .value(begins)
            .value(ends)
            .value(seqs_begin)
            .value(seqs_end)
            .value(series_begin)
            .value(series_end)
            .value(flat(chunks, |one| &one.chunk.at))
            .value(flat(chunks, |one| &one.seqs))
            .value(flat(chunks, |one| &one.packed.series));
        let columns = with_scalars(columns, chunks);
        self.execute(&WRITE_CHUNKS, &columns.params())
            .await
            .map(drop)
    }

    pub(super) async fn rollups_write(&self, rollups: &[HostRollup]) -> Result<()> {
        let columns = Columns::of(rollups);
        self.execute(&columns.insert(), &columns.arrays.params())
            .await
            .map(drop)
    }
}

/// In the order of `SCALARS`.
fn with_scalars<'a>(columns: Arrays<'a>, chunks: &[HostChunk]) -> Arrays<'a> {
    let real = |n: usize| flat(chunks, move |one| &*one.chunk.reals[n]);
    let big = |of: fn(&Chunk) -> &Vec<i64>| flat(chunks, move |one| &**of(&one.chunk));
    columns
        .value(real(0))
        .value(real(1))
        .value(real(2))
        .value(real(3))
        .value(big(|chunk| &chunk.memory_used_bytes))
        .value(big(|chunk| &chunk.memory_total_bytes))
        .value(big(|chunk| &chunk.swap_used_bytes))
        .value(big(|chunk| &chunk.swap_total_bytes))
        .value(big(|chunk| &chunk.uptime_seconds))
        .value(flat(chunks, |one| &one.chunk.process_count))
        .value(big(|chunk| &chunk.network_rx_bytes))
        .value(big(|chunk| &chunk.network_tx_bytes))
}

/// The beginning of an hour since the epoch.
pub(super) fn hour(hour: i64) -> Timestamp {
    time(hour.saturating_mul(HOUR))
}

/// Rollups as columns of `host_rollups`, with their names.
struct Columns<'a> {
    rollups: &'a [HostRollup],
    names: Vec<String>,
    arrays: Arrays<'a>,
}

impl<'a> Columns<'a> {
    fn of(rollups: &'a [HostRollup]) -> Columns<'a> {
        let arrays = Arrays::default()
            .column(rollups, |one| one.host_no)
            .column(rollups, |one| hour(one.hour));
        let columns = Columns {
            rollups,
            names: Vec::new(),
            arrays,
        };
        columns
            .add("first_at", |of| time(of.first_at))
            .add("last_at", |of| time(of.last_at))
            .add("counters_from", |of| time(of.counters_from))
            .span("cpu_percent", |of| of.reals[0])
            .span("load_1m", |of| of.reals[1])
            .span("load_5m", |of| of.reals[2])
            .span("load_15m", |of| of.reals[3])
            .span("memory_used_bytes", |of| of.memory_used_bytes)
            .add("memory_total_bytes", |of| of.memory_total_bytes)
            .span("swap_used_bytes", |of| of.swap_used_bytes)
            .add("swap_total_bytes", |of| of.swap_total_bytes)
            .span("process_count", |of| of.process_count)
            .add("network_rx_bytes_increase", |of| {
                of.network_rx_bytes_increase
            })
            .add("network_tx_bytes_increase", |of| {
                of.network_tx_bytes_increase
            })
            .add("fullest_disk_percent", |of| {
                of.fullest_disk.as_ref().map(|(percent, _)| *percent)
            })
            .add("fullest_disk_mount_point", |of| {
                of.fullest_disk.as_ref().map(|(_, name)| &**name)
            })
            .add("sample_count", |of| of.sample_count)
            .add("shape", |of| of.shape)
            .add("figures", |of| figures(&of.figures))
    }

    fn add<T>(mut self, name: &str, value: impl Fn(&'a Rollup) -> T) -> Columns<'a>
    where
        T: ToSql + Element + Sync + Send + 'a,
    {
        let values: Vec<T> = self.rollups.iter().map(|one| value(&one.figures)).collect();
        self.names.push(name.to_owned());
        self.arrays = self.arrays.value(values);
        self
    }

    fn span<T>(self, name: &str, span: fn(&Rollup) -> Span<T>) -> Columns<'a>
    where
        T: ToSql + Element + Sync + Send + 'a,
    {
        self.add(&format!("{name}_min"), move |one| span(one).least)
            .add(&format!("{name}_avg"), move |one| span(one).mean)
            .add(&format!("{name}_max"), move |one| span(one).greatest)
    }

    /// The first condition avoids to write an unchanged row. The others keep a stored rollup whose samples were dropped
    /// meanwhile. OFFSET 0: each host is looked up by its key, whatever the statistics say. A host that is gone has no rollups.
    fn insert(&self) -> String {
        let names = self.names.join(", ");
        let params = (3..self.names.len() + 3).map(|n| format!("${n}"));
        format!(
            "-- compaction_step
            INSERT INTO host_rollups AS known (host_id, hour, {names})
            SELECT v.host_id, r.hour, {values}
              FROM unnest($1, $2, {params}) AS r(host_no, hour, {names})
             CROSS JOIN LATERAL (SELECT host_id FROM host_vitals v WHERE v.host_no = r.host_no OFFSET 0) v
            ON CONFLICT (host_id, hour) DO UPDATE SET {replaced}
             WHERE known.* IS DISTINCT FROM excluded.*
               AND excluded.sample_count >= known.sample_count
               AND excluded.first_at <= known.first_at AND excluded.last_at >= known.last_at
               AND (excluded.counters_from < known.hour OR known.counters_from >= known.hour)",
            values = names.replace("figures", "figures::bigint[]"),
            params = params.collect::<Vec<_>>().join(", "),
            replaced = replaced(&self.names),
        )
    }
}

/// An array of arrays as PostgreSQL writes it. The driver cannot send one as a parameter.
fn figures(figures: &[[Option<i64>; 3]]) -> String {
    let number = |figure: Option<i64>| figure.map_or("NULL".to_owned(), |n| n.to_string());
    let part = |part: &[Option<i64>; 3]| format!("{{{}}}", part.map(number).join(","));
    let parts: Vec<String> = figures.iter().map(part).collect();
    format!("{{{}}}", parts.join(","))
}
