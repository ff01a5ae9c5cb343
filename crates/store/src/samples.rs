//! Samples: appended with their watermark, their books and the hosts' latest
//! vitals, in one transaction for many agents.
//!
//! What makes a sample stored once is the watermark `acked_seq`, held under the
//! agent's row lock, and not a unique index. Rows are locked in the order of their
//! keys, so that no two writers wait for each other.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use crate::error::StoreError;
use crate::ids::{AgentId, HostId};
use crate::pool::{Bulkhead, Store};
use crate::tx::Tx;

#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    pub seq: i64,
    pub sampled_at: Timestamp,
    pub cpu_percent: f64,
    pub load: [f64; 3],
    pub memory_used_bytes: i64,
    pub memory_total_bytes: i64,
    pub swap_used_bytes: i64,
    pub swap_total_bytes: i64,
    pub uptime_seconds: i64,
    pub process_count: i64,
    pub network_rx_bytes: i64,
    pub network_tx_bytes: i64,
    pub disks: Vec<DiskRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskRow {
    pub mount_point: String,
    pub device: String,
    pub fs_type: String,
    pub total_bytes: i64,
    pub used_bytes: i64,
}

/// Numbers for which no sample will be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapRow {
    pub first_seq: i64,
    pub last_seq: i64,
    pub kind: GapKind,
    pub reason: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapKind {
    NotSent,
    Declared,
    Rejected,
}

/// A contiguous range of one agent's numbers: each is a sample or in a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub agent_id: AgentId,
    pub host_id: HostId,
    pub first_seq: i64,
    pub last_seq: i64,
    pub samples: Vec<SampleRow>,
    pub gaps: Vec<GapRow>,
}

/// Where an agent's watermark stands after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    pub agent_id: AgentId,
    pub acked_seq: i64,
}

impl GapKind {
    fn as_str(self) -> &'static str {
        match self {
            GapKind::NotSent => "not sent",
            GapKind::Declared => "declared",
            GapKind::Rejected => "rejected",
        }
    }
}

impl Range {
    /// Leaves out what is at or below the watermark. `None` when nothing is
    /// left, or when numbers between the watermark and this range are missing.
    fn above(&self, acked: i64) -> Option<Range> {
        if self.last_seq <= acked || self.first_seq > acked + 1 {
            return None;
        }
        let samples = self
            .samples
            .iter()
            .filter(|sample| sample.seq > acked)
            .cloned();
        let gaps = self.gaps.iter().filter(|gap| gap.last_seq > acked).cloned();
        Some(Range {
            first_seq: acked + 1,
            samples: samples.collect(),
            gaps: gaps
                .map(|gap| GapRow {
                    first_seq: gap.first_seq.max(acked + 1),
                    ..gap
                })
                .collect(),
            ..*self
        })
    }

    fn missing(&self, kind: impl Fn(GapKind) -> bool) -> i64 {
        let gaps = self.gaps.iter().filter(|gap| kind(gap.kind));
        gaps.map(|gap| gap.last_seq - gap.first_seq + 1).sum()
    }
}

impl Store {
    /// Stores ranges and moves their agents' watermarks. The watermarks that come
    /// back are committed; an agent that is not active, or was deleted, has none.
    pub async fn samples_append(&self, ranges: &[Range]) -> Result<Vec<Watermark>, StoreError> {
        self.run("samples_append", Bulkhead::Ingest, |tx| async move {
            let mut acked = tx.watermarks_lock(ranges).await?;
            let mut fresh = Vec::with_capacity(ranges.len());
            for range in ranges {
                let Some(watermark) = acked.get_mut(&range.agent_id) else {
                    continue;
                };
                if let Some(range) = range.above(*watermark) {
                    *watermark = range.last_seq;
                    fresh.push(range);
                }
            }
            if !fresh.is_empty() {
                tx.samples_insert(&fresh).await?;
                tx.gaps_insert(&fresh).await?;
                tx.watermarks_move(&fresh).await?;
                tx.vitals_update(&fresh).await?;
            }
            Ok(acked
                .into_iter()
                .map(|(agent_id, acked_seq)| Watermark {
                    agent_id,
                    acked_seq,
                })
                .collect())
        })
        .await
    }

    /// Makes the partitions that samples may fall into.
    pub async fn samples_prepare(&self, retention: Duration) -> Result<i32, StoreError> {
        let lock = "-- samples_prepare\nSELECT pg_advisory_xact_lock($1)";
        let sql = "-- samples_prepare\nSELECT metrics_partitions_ensure(make_interval(secs => $1)) AS made";
        let seconds = retention.as_secs_f64();
        self.run("samples_prepare", Bulkhead::Watch, |tx| async move {
            tx.execute(lock, &[(&crate::locks::PARTITIONS, Type::INT8)])
                .await?;
            Ok(tx
                .query_one(sql, &[(&seconds, Type::FLOAT8)])
                .await?
                .try_get("made")?)
        })
        .await
    }
}

impl Tx {
    async fn watermarks_lock(
        &self,
        ranges: &[Range],
    ) -> Result<BTreeMap<AgentId, i64>, StoreError> {
        let sql = "-- samples_append
            SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
             WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";
        let agents: Vec<Uuid> = ranges.iter().map(|range| range.agent_id.0).collect();
        let rows = self.query(sql, &[(&agents, Type::UUID_ARRAY)]).await?;
        rows.iter()
            .map(|row| Ok((AgentId(row.try_get(0)?), row.try_get(1)?)))
            .collect()
    }

    async fn samples_insert(&self, ranges: &[Range]) -> Result<(), StoreError> {
        let all: Vec<(&Range, &SampleRow)> = ranges
            .iter()
            .flat_map(|range| range.samples.iter().map(move |sample| (range, sample)))
            .collect();
        let ids = |id: fn(&Range) -> Uuid| -> Vec<Uuid> {
            all.iter().map(|(range, _)| id(range)).collect()
        };
        let integers = |value: fn(&SampleRow) -> i64| -> Vec<i64> {
            all.iter().map(|(_, sample)| value(sample)).collect()
        };
        let floats = |value: fn(&SampleRow) -> f64| -> Vec<f64> {
            all.iter().map(|(_, sample)| value(sample)).collect()
        };
        let times: Vec<Timestamp> = all.iter().map(|(_, sample)| sample.sampled_at).collect();
        let disks: Vec<Json<&Vec<DiskRow>>> =
            all.iter().map(|(_, sample)| Json(&sample.disks)).collect();
        let sql = "-- samples_append
            INSERT INTO host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                   memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds,
                   process_count, network_rx_bytes, network_tx_bytes, disks)
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::bigint[], $5::float8[], $6::float8[],
                   $7::float8[], $8::float8[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
                   $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::jsonb[])";
        let params = [
            (&ids(|range| range.host_id.0) as _, Type::UUID_ARRAY),
            (&ids(|range| range.agent_id.0) as _, Type::UUID_ARRAY),
            (&times as _, Type::TIMESTAMPTZ_ARRAY),
            (&integers(|sample| sample.seq) as _, Type::INT8_ARRAY),
            (
                &floats(|sample| sample.cpu_percent) as _,
                Type::FLOAT8_ARRAY,
            ),
            (&floats(|sample| sample.load[0]) as _, Type::FLOAT8_ARRAY),
            (&floats(|sample| sample.load[1]) as _, Type::FLOAT8_ARRAY),
            (&floats(|sample| sample.load[2]) as _, Type::FLOAT8_ARRAY),
            (
                &integers(|sample| sample.memory_used_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.memory_total_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.swap_used_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.swap_total_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.uptime_seconds) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.process_count) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.network_rx_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.network_tx_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (&disks as _, Type::JSONB_ARRAY),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }

    async fn gaps_insert(&self, ranges: &[Range]) -> Result<(), StoreError> {
        let all: Vec<(Uuid, &GapRow)> = ranges
            .iter()
            .flat_map(|range| range.gaps.iter().map(move |gap| (range.agent_id.0, gap)))
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        let sql = "-- samples_append
            INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])";
        let params = [
            (
                &all.iter().map(|(agent, _)| *agent).collect::<Vec<_>>() as _,
                Type::UUID_ARRAY,
            ),
            (
                &all.iter().map(|(_, gap)| gap.first_seq).collect::<Vec<_>>() as _,
                Type::INT8_ARRAY,
            ),
            (
                &all.iter().map(|(_, gap)| gap.last_seq).collect::<Vec<_>>() as _,
                Type::INT8_ARRAY,
            ),
            (
                &all.iter()
                    .map(|(_, gap)| gap.kind.as_str())
                    .collect::<Vec<_>>() as _,
                Type::TEXT_ARRAY,
            ),
            (
                &all.iter()
                    .map(|(_, gap)| gap.reason.as_ref())
                    .collect::<Vec<_>>() as _,
                Type::TEXT_ARRAY,
            ),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }

    /// Several ranges of one agent add up.
    async fn watermarks_move(&self, ranges: &[Range]) -> Result<(), StoreError> {
        let sql = "-- samples_append
            UPDATE agent_state s
               SET acked_seq = moved.acked_seq, stored_count = s.stored_count + moved.stored,
                   rejected_count = s.rejected_count + moved.rejected, gap_count = s.gap_count + moved.gaps
              FROM (SELECT agent_id, max(last_seq) AS acked_seq, sum(stored)::bigint AS stored,
                           sum(rejected)::bigint AS rejected, sum(gaps)::bigint AS gaps
                      FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
                           AS given(agent_id, last_seq, stored, rejected, gaps)
                     GROUP BY agent_id) moved
             WHERE s.agent_id = moved.agent_id";
        let integers =
            |value: fn(&Range) -> i64| -> Vec<i64> { ranges.iter().map(value).collect() };
        let params = [
            (
                &ranges
                    .iter()
                    .map(|range| range.agent_id.0)
                    .collect::<Vec<_>>() as _,
                Type::UUID_ARRAY,
            ),
            (&integers(|range| range.last_seq) as _, Type::INT8_ARRAY),
            (
                &integers(|range| range.samples.len().try_into().unwrap_or(i64::MAX)) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|range| range.missing(|kind| kind == GapKind::Rejected)) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|range| range.missing(|kind| kind != GapKind::Rejected)) as _,
                Type::INT8_ARRAY,
            ),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }

    /// The latest sample of each host; never an older one over a newer.
    async fn vitals_update(&self, ranges: &[Range]) -> Result<(), StoreError> {
        let mut latest: BTreeMap<HostId, &SampleRow> = BTreeMap::new();
        for range in ranges {
            for sample in &range.samples {
                let known = latest.entry(range.host_id).or_insert(sample);
                if sample.sampled_at >= known.sampled_at {
                    *known = sample;
                }
            }
        }
        if latest.is_empty() {
            return Ok(());
        }
        let sql = "-- samples_append
            UPDATE hosts h
               SET vitals_at = v.sampled_at, cpu_percent = v.cpu, load_1m = v.load, memory_used_bytes = v.memory,
                   memory_total_bytes = v.total, swap_used_bytes = v.swap, uptime_seconds = v.uptime,
                   process_count = v.processes, disks = v.disks
              FROM unnest($1::uuid[], $2::timestamptz[], $3::float8[], $4::float8[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::bigint[], $9::bigint[], $10::jsonb[])
                   AS v(host_id, sampled_at, cpu, load, memory, total, swap, uptime, processes, disks)
             WHERE h.id = v.host_id AND (h.vitals_at IS NULL OR h.vitals_at <= v.sampled_at)";
        let integers = |value: fn(&SampleRow) -> i64| -> Vec<i64> {
            latest.values().map(|sample| value(sample)).collect()
        };
        let params = [
            (
                &latest.keys().map(|host| host.0).collect::<Vec<_>>() as _,
                Type::UUID_ARRAY,
            ),
            (
                &latest
                    .values()
                    .map(|sample| sample.sampled_at)
                    .collect::<Vec<_>>() as _,
                Type::TIMESTAMPTZ_ARRAY,
            ),
            (
                &latest
                    .values()
                    .map(|sample| sample.cpu_percent)
                    .collect::<Vec<_>>() as _,
                Type::FLOAT8_ARRAY,
            ),
            (
                &latest
                    .values()
                    .map(|sample| sample.load[0])
                    .collect::<Vec<_>>() as _,
                Type::FLOAT8_ARRAY,
            ),
            (
                &integers(|sample| sample.memory_used_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.memory_total_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.swap_used_bytes) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.uptime_seconds) as _,
                Type::INT8_ARRAY,
            ),
            (
                &integers(|sample| sample.process_count) as _,
                Type::INT8_ARRAY,
            ),
            (
                &latest
                    .values()
                    .map(|sample| Json(&sample.disks))
                    .collect::<Vec<_>>() as _,
                Type::JSONB_ARRAY,
            ),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }
}
