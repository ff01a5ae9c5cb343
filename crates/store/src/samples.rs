//! Appending samples exactly once, in one transaction for many agents.
//!
//! **Watermark.** An agent numbers its samples 1, 2, 3, … without holes; a number without a
//! sample is in a gap. `acked_seq` in `agent_state` is the highest number such that it and all
//! lower numbers are committed as samples or gaps.
//!
//! **Exactly once.** Ranges arrive more than once and out of order: agents resend after a
//! reconnect, the queue redelivers, and several consumers run at once. Almost every range continues
//! exactly above its agent's watermark: `usual` stores all of those by one call. The others take the
//! general path, `advance`, in a second transaction. It locks the agents' rows and reads their
//! watermarks. Of each range it keeps the part above the watermark, if that part is adjacent to it,
//! and writes the samples, the gaps and the new watermark together. A duplicate is entirely below
//! the watermark, so nothing of it is written. A range beyond a hole is not written either; the
//! returned watermark tells that it is still missing, and it is delivered again. Two consumers with
//! the same range are serialized by the row lock; the second one sees the new watermark. If the reply
//! to COMMIT is lost, the caller repeats the call, and the watermark tells what was committed. Where
//! only duplicates are found, the row locks are what the transaction writes, and its commit waits for a
//! synchronous standby like any other: see `watermarks`.
//!
//! No unique index is necessary for this.
//!
//! **Lock order.** Rows of `agent_state` are locked in the order of the agents' ids before
//! anything is written, so that two appends cannot deadlock.

mod advance;
mod columns;
mod range;
mod shape;
mod usual;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    error::StoreError,
    ids::{AgentId, HostId},
    pool::{Bulkhead, Store},
    record::record,
    vitals::PartKind,
};

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
    pub optional: Option<Box<OptionalVitals>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRow {
    pub mount_point: String,
    pub device: String,
    pub fs_type: String,
    pub total_bytes: i64,
    pub used_bytes: i64,
}

/// What not every host measures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionalVitals {
    pub parts: Vec<PartRow>,
    /// The mount points of file systems that did not say how full they are. Only the latest are stored.
    pub unreadable_mounts: Vec<String>,
    /// Why the agent cannot store samples on its own disk; empty while it can. Only the latest is stored.
    pub spool_problem: String,
}

/// One measurement of something that a host has several of, or may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRow {
    pub kind: PartKind,
    /// Which one; empty if there is only one. The parts of one device share it.
    pub name: Arc<str>,
    pub value: i64,
}

/// A range of numbers for which no sample is stored, and why.
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
    /// The previous version could not store them, because their day was beyond the retention.
    NotKept,
    /// The database rejected them repeatedly.
    DeadLetter,
}

/// A contiguous range of one agent's numbers. Each number is a sample or in a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub agent_id: AgentId,
    pub host_id: HostId,
    pub first_seq: i64,
    pub last_seq: i64,
    pub samples: Vec<SampleRow>,
    pub gaps: Vec<GapRow>,
}

record! {
    /// An agent's committed watermark.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Watermark {
        pub agent_id: AgentId,
        pub acked_seq: i64,
    }
}

impl GapRow {
    /// How many numbers it covers.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a gap covers at least one number"
    )]
    pub fn len(&self) -> i64 {
        self.last_seq - self.first_seq + 1
    }
}

impl GapKind {
    fn as_str(self) -> &'static str {
        match self {
            GapKind::NotSent => "not sent",
            GapKind::Declared => "declared",
            GapKind::Rejected => "rejected",
            GapKind::NotKept => "not kept",
            GapKind::DeadLetter => "dead letter",
        }
    }
}

impl Store {
    /// Stores ranges and returns the committed watermarks of their agents. An agent that is
    /// not active, or was deleted, has none.
    pub async fn samples_append(&self, ranges: &[Range]) -> Result<Vec<Watermark>, StoreError> {
        let (runs, mut others) = usual::runs(ranges);
        let mut acked: BTreeMap<AgentId, i64> = BTreeMap::new();
        if !runs.is_empty() {
            let marks = runs.iter().map(|run| (run.agent_id, run.last_seq));
            acked.extend(marks);
            for index in self.runs_append(&runs).await? {
                acked.remove(&runs[index].agent_id);
                others.extend(&runs[index].ranges);
            }
        }
        if !others.is_empty() {
            acked.extend(self.append(&others).await?);
        }
        let watermark = |(agent_id, acked_seq)| Watermark {
            agent_id,
            acked_seq,
        };
        Ok(acked.into_iter().map(watermark).collect())
    }

    /// The general path.
    async fn append(&self, ranges: &[&Range]) -> Result<BTreeMap<AgentId, i64>, StoreError> {
        self.run("samples_append", Bulkhead::Ingest, |tx| async move {
            let mut acked = tx.watermarks_lock(ranges).await?;
            let fresh = advance(ranges, &mut acked);
            tx.ranges_write(&fresh).await?;
            Ok(acked)
        })
        .await
    }
}

/// The part of each range that is new, and the watermarks after it. An agent may have several
/// ranges; each one continues where the one before ended. The result is ordered by host, so
/// that neighbours in the index are written together.
fn advance<'a>(ranges: &[&'a Range], acked: &mut BTreeMap<AgentId, i64>) -> Vec<Cow<'a, Range>> {
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
    fresh.sort_by_key(|range| (range.host_id, range.first_seq));
    fresh
}
