//! The stored chunks that a batch needs, read back.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{
    batch::{Fresh, HostChunks, Stored},
    write,
};
use crate::{
    history::{
        chunk::{Chunk, ChunkKey, HOUR, newest, seqs, uptime},
        pack::{Packed, unpack, unpack_one},
    },
    prelude::*,
    service::samples::SCALARS,
};

/// The columns that the newest sample of a chunk is taken from. Of the others nothing is decompressed unless the hour is
/// wanted as a whole.
const NEWEST: [&str; 3] = ["uptime_seconds", "network_rx_bytes", "network_tx_bytes"];

/// OFFSET 0: each hour of a host is looked up by its key, whatever the statistics say.
static READ: LazyLock<String> = LazyLock::new(|| {
    let scalars = SCALARS
        .iter()
        .map(|scalar| match NEWEST.contains(&scalar.name) {
            true => format!("c.{}", scalar.name),
            false => format!("CASE WHEN k.whole THEN c.{0} END AS {0}", scalar.name),
        });
    format!(
        "-- compaction_step
        SELECT k.whole, c.host_no, c.hour, c.agent_no, c.shape, c.first_seq, c.seqs, c.at, c.parts_series, c.parts_steps, {}
          FROM unnest($1::integer[], $2::timestamptz[], $3::boolean[]) AS k(host_no, hour, whole)
         CROSS JOIN LATERAL (SELECT * FROM sample_chunks c WHERE c.host_no = k.host_no AND c.hour = k.hour OFFSET 0) c",
        scalars.collect::<Vec<_>>().join(", ")
    )
});

/// The hours that are needed of a host with these new chunks, and whether as a whole: its own, because they are merged and rolled
/// up, and the next, because its increases start there. Of the hour before, the newest samples.
fn wanted(fresh: &HostChunks) -> BTreeMap<i64, bool> {
    let mut hours = BTreeMap::new();
    for key in fresh.keys() {
        hours.entry(key.hour - 1).or_insert(false);
        hours.extend([(key.hour, true), (key.hour + 1, true)]);
    }
    hours
}

impl Tx {
    pub(super) async fn stored_chunks(&self, fresh: &Fresh) -> Result<Stored> {
        let (mut host_nos, mut hours, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
        for (host_no, fresh) in fresh {
            for (hour, whole) in wanted(fresh) {
                host_nos.push(*host_no);
                hours.push(write::hour(hour));
                wholes.push(whole);
            }
        }
        let params = params![host_nos, hours, wholes];
        let mut stored = Stored::new();
        for row in &self.query(&READ, &params).await? {
            let (host_no, key, chunk) = read(row)?;
            stored.entry(host_no).or_default().insert(key, chunk);
        }
        Ok(stored)
    }
}

fn read(row: &Row) -> Result<(i32, ChunkKey, Chunk)> {
    let hour: Timestamp = row.try_get("hour")?;
    let key = ChunkKey {
        hour: hour.as_microsecond().div_euclid(HOUR),
        agent_no: row.try_get("agent_no")?,
        shape: row.try_get("shape")?,
    };
    let chunk = match row.try_get("whole")? {
        true => whole(row)?,
        false => only_newest(row)?,
    };
    Ok((row.try_get("host_no")?, key, chunk))
}

fn whole(row: &Row) -> Result<Chunk> {
    let at: Vec<i32> = row.try_get("at")?;
    let stored: Vec<i64> = row.try_get("uptime_seconds")?;
    let uptimes = stored.iter().zip(&at);
    Ok(Chunk {
        seq: seqs(row.try_get("first_seq")?, row.try_get("seqs")?, at.len()),
        reals: [
            row.try_get("cpu_percent")?,
            row.try_get("load_1m")?,
            row.try_get("load_5m")?,
            row.try_get("load_15m")?,
        ],
        memory_used_bytes: row.try_get("memory_used_bytes")?,
        memory_total_bytes: row.try_get("memory_total_bytes")?,
        swap_used_bytes: row.try_get("swap_used_bytes")?,
        swap_total_bytes: row.try_get("swap_total_bytes")?,
        uptime_seconds: uptimes.map(|(stored, at)| uptime(*stored, *at)).collect(),
        process_count: row.try_get("process_count")?,
        network_rx_bytes: row.try_get("network_rx_bytes")?,
        network_tx_bytes: row.try_get("network_tx_bytes")?,
        parts: unpack(&packed(row)?, at.len())?,
        at,
    })
}

/// A chunk of the newest sample alone, with the columns that increases start from.
fn only_newest(row: &Row) -> Result<Chunk> {
    let at: Vec<i32> = row.try_get("at")?;
    let seqs = seqs(row.try_get("first_seq")?, row.try_get("seqs")?, at.len());
    let place = newest(&at).unwrap_or_default();
    let one = |values: Vec<i64>| values.get(place).copied().into_iter().collect();
    let stored: Vec<i64> = row.try_get("uptime_seconds")?;
    let uptimes = stored.iter().zip(&at);
    let parts = unpack_one(&packed(row)?, at.len(), place)?;
    Ok(Chunk {
        seq: one(seqs),
        uptime_seconds: one(uptimes.map(|(stored, at)| uptime(*stored, *at)).collect()),
        network_rx_bytes: one(row.try_get("network_rx_bytes")?),
        network_tx_bytes: one(row.try_get("network_tx_bytes")?),
        parts: parts.into_iter().map(|value| vec![value]).collect(),
        at: at.get(place).copied().into_iter().collect(),
        ..Chunk::default()
    })
}

fn packed(row: &Row) -> Result<Packed> {
    let series: Option<Vec<i64>> = row.try_get("parts_series")?;
    let steps: Option<Vec<u8>> = row.try_get("parts_steps")?;
    Ok(Packed {
        series: series.unwrap_or_default(),
        steps: steps.unwrap_or_default(),
    })
}
