//! Advances the agents of a batch: locks and reads their watermarks first; at the end writes
//! gaps, watermarks, books and latest vitals, and notes which hours the rollups must compute.
//!
//! **Invariant:** stored + rejected + gaps = acked_seq for every agent after every commit. A
//! constraint of the table enforces it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use super::{DiskRow, GapKind, GapRow, Range, SampleRow};
use crate::{
    arrays::Arrays,
    error::StoreError,
    ids::{AgentId, HostId},
    tx::Tx,
};

const SECONDS_AN_HOUR: i64 = 3600;

/// One statement, because each statement costs a round trip while the agents are locked. An
/// older sample never replaces the vitals of a newer one.
const MOVE: &str = "-- samples_append
    WITH books AS (
        UPDATE agent_state s
           SET acked_seq = m.acked_seq, stored_count = s.stored_count + m.stored,
               rejected_count = s.rejected_count + m.rejected, gap_count = s.gap_count + m.gaps
          FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
               AS m(agent_id, acked_seq, stored, rejected, gaps)
         WHERE s.agent_id = m.agent_id),
    changes AS (
        INSERT INTO rollup_changes (hour, host_ids)
        SELECT hour, array_agg(host_id) FROM unnest($6::timestamptz[], $7::uuid[]) AS c(hour, host_id) GROUP BY hour)
    UPDATE hosts h
       SET vitals_at = v.sampled_at, cpu_percent = v.cpu_percent,
           load_1m = v.load_1m, load_5m = v.load_5m, load_15m = v.load_15m,
           memory_used_bytes = v.memory_used_bytes, memory_total_bytes = v.memory_total_bytes,
           swap_used_bytes = v.swap_used_bytes, swap_total_bytes = v.swap_total_bytes,
           uptime_seconds = v.uptime_seconds, process_count = v.process_count,
           network_rx_bytes = v.network_rx_bytes, network_tx_bytes = v.network_tx_bytes, disks = v.disks,
           fullest_disk_percent = v.fullest_disk_percent, fullest_disk_mount_point = v.fullest_disk_mount_point
      FROM unnest($8::uuid[], $9::timestamptz[], $10::float8[], $11::float8[], $12::float8[], $13::float8[],
                  $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
                  $20::bigint[], $21::bigint[], $22::jsonb[], $23::smallint[], $24::text[])
           AS v(host_id, sampled_at, cpu_percent, load_1m, load_5m, load_15m,
                memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count,
                network_rx_bytes, network_tx_bytes, disks, fullest_disk_percent, fullest_disk_mount_point)
     WHERE h.id = v.host_id AND (h.vitals_at IS NULL OR h.vitals_at <= v.sampled_at)";

/// The new watermark of one agent, and what the batch adds to its counters.
#[derive(Clone, Copy, Default)]
struct Entry {
    acked_seq: i64,
    stored: i64,
    rejected: i64,
    gaps: i64,
}

impl Tx {
    /// Locks the active agents of these ranges and reads their watermarks. The lock lasts until
    /// the commit. Its order by id prevents deadlocks between appends.
    pub(super) async fn watermarks_lock(
        &self,
        ranges: &[Range],
    ) -> Result<BTreeMap<AgentId, i64>, StoreError> {
        let sql = "-- samples_append
            SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
             WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";
        let agents: Vec<Uuid> = ranges.iter().map(|range| range.agent_id.0).collect();
        let rows = self.query(sql, &[(&agents, Type::UUID_ARRAY)]).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    }

    pub(super) async fn gaps_insert(&self, ranges: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        let mut gaps: Vec<(Uuid, &GapRow)> = Vec::new();
        for range in ranges {
            gaps.extend(range.gaps.iter().map(|gap| (range.agent_id.0, gap)));
        }
        if gaps.is_empty() {
            return Ok(());
        }
        let sql = "-- samples_append
            INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])";
        let columns = Arrays::default()
            .column(Type::UUID_ARRAY, &gaps, |(agent, _)| *agent)
            .column(Type::INT8_ARRAY, &gaps, |(_, gap)| gap.first_seq)
            .column(Type::INT8_ARRAY, &gaps, |(_, gap)| gap.last_seq)
            .column(Type::TEXT_ARRAY, &gaps, |(_, gap)| gap.kind.as_str())
            .column(Type::TEXT_ARRAY, &gaps, |(_, gap)| &*gap.reason);
        self.execute(sql, &columns.params()).await.map(drop)
    }

    pub(super) async fn agents_advance(&self, ranges: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        let columns = with_books(Arrays::default(), ranges);
        let columns = with_changes(columns, ranges);
        let columns = with_vitals(columns, ranges);
        self.execute(MOVE, &columns.params()).await.map(drop)
    }
}

/// Parameters 1 to 5. Several ranges of one agent add up.
fn with_books<'a>(columns: Arrays<'a>, ranges: &'a [Cow<'_, Range>]) -> Arrays<'a> {
    let mut entries: BTreeMap<AgentId, Entry> = BTreeMap::new();
    for range in ranges {
        let entry = entries.entry(range.agent_id).or_default();
        entry.acked_seq = entry.acked_seq.max(range.last_seq);
        entry.stored += range.stored();
        entry.rejected += range.missing(|kind| kind == GapKind::Rejected);
        entry.gaps += range.missing(|kind| kind != GapKind::Rejected);
    }
    let entries: Vec<(AgentId, Entry)> = entries.into_iter().collect();
    columns
        .column(Type::UUID_ARRAY, &entries, |(agent, _)| agent.0)
        .column(Type::INT8_ARRAY, &entries, |(_, entry)| entry.acked_seq)
        .column(Type::INT8_ARRAY, &entries, |(_, entry)| entry.stored)
        .column(Type::INT8_ARRAY, &entries, |(_, entry)| entry.rejected)
        .column(Type::INT8_ARRAY, &entries, |(_, entry)| entry.gaps)
}

/// Parameters 6 and 7: each changed host and hour once.
fn with_changes<'a>(columns: Arrays<'a>, ranges: &'a [Cow<'_, Range>]) -> Arrays<'a> {
    let hours = |range: &Cow<'_, Range>| {
        let host = range.host_id;
        let hours: BTreeSet<Timestamp> = range.samples.iter().map(hour).collect();
        hours.into_iter().map(move |hour| (hour, host))
    };
    let changes: BTreeSet<(Timestamp, HostId)> = ranges.iter().flat_map(hours).collect();
    let changes: Vec<(Timestamp, HostId)> = changes.into_iter().collect();
    columns
        .column(Type::TIMESTAMPTZ_ARRAY, &changes, |(hour, _)| *hour)
        .column(Type::UUID_ARRAY, &changes, |(_, host)| host.0)
}

fn hour(sample: &SampleRow) -> Timestamp {
    let seconds = sample.sampled_at.as_second();
    let hour = seconds - seconds.rem_euclid(SECONDS_AN_HOUR);
    Timestamp::from_second(hour).unwrap_or(sample.sampled_at)
}

/// Parameters 8 to 24: the latest sample of each host.
fn with_vitals<'a>(columns: Arrays<'a>, ranges: &'a [Cow<'_, Range>]) -> Arrays<'a> {
    let mut latest: BTreeMap<HostId, &SampleRow> = BTreeMap::new();
    for range in ranges {
        for sample in &range.samples {
            let known = latest.entry(range.host_id).or_insert(sample);
            if sample.sampled_at >= known.sampled_at {
                *known = sample;
            }
        }
    }
    let latest: Vec<(HostId, &SampleRow)> = latest.into_iter().collect();
    columns
        .column(Type::UUID_ARRAY, &latest, |(host, _)| host.0)
        .column(Type::TIMESTAMPTZ_ARRAY, &latest, |(_, s)| s.sampled_at)
        .column(Type::FLOAT8_ARRAY, &latest, |(_, s)| s.cpu_percent)
        .column(Type::FLOAT8_ARRAY, &latest, |(_, s)| s.load[0])
        .column(Type::FLOAT8_ARRAY, &latest, |(_, s)| s.load[1])
        .column(Type::FLOAT8_ARRAY, &latest, |(_, s)| s.load[2])
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.memory_used_bytes)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.memory_total_bytes)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.swap_used_bytes)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.swap_total_bytes)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.uptime_seconds)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.process_count)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.network_rx_bytes)
        .column(Type::INT8_ARRAY, &latest, |(_, s)| s.network_tx_bytes)
        .column(Type::JSONB_ARRAY, &latest, |(_, s)| Json(&s.disks))
        .column(Type::INT2_ARRAY, &latest, |(_, s)| {
            fullest(&s.disks).map(|(percent, _)| percent.floor() as i16)
        })
        .column(Type::TEXT_ARRAY, &latest, |(_, s)| {
            fullest(&s.disks).map(|(_, disk)| disk.mount_point.as_str())
        })
}

/// The disk with the highest usage in percent. Of equals, the first by mount point.
fn fullest(disks: &[DiskRow]) -> Option<(f64, &DiskRow)> {
    let share = |disk: &DiskRow| 100.0 * disk.used_bytes as f64 / disk.total_bytes as f64;
    let sized = disks.iter().filter(|disk| disk.total_bytes > 0);
    let shares = sized.map(|disk| (share(disk).min(100.0), disk));
    shares.max_by(|(one, a), (other, b)| {
        let by_name = || b.mount_point.cmp(&a.mount_point);
        one.total_cmp(other).then_with(by_name)
    })
}
