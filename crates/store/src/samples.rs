//! Samples: appended with their watermark, their books and the hosts' latest
//! vitals, in one transaction for many agents.
//!
//! What makes a sample stored once is the watermark `acked_seq`, held under the
//! agent's row lock, and not a unique index: so history can be written by COPY.
//! Rows are locked in the order of their keys, so that no two writers wait for
//! each other.

mod advance;
mod arrays;
mod days;
mod history;
mod range;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::error::StoreError;
use crate::ids::{AgentId, HostId};
use crate::pool::{Bulkhead, Store};
use crate::tx::Tx;

/// How often an append looks again which days are kept, before it gives up.
const LOOKS: u32 = 3;

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
    /// Their day was dropped before they could be stored.
    NotKept,
    /// Refused by the database, whatever was tried.
    DeadLetter,
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

/// Whether a sample's day is known to be kept, or has to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Days {
    Trusted,
    LookedUp,
}

impl GapRow {
    /// How many numbers it covers.
    #[expect(clippy::len_without_is_empty, reason = "a gap covers at least one")]
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
    /// Stores ranges and moves their agents' watermarks. The watermarks that come
    /// back are committed; an agent that is not active, or was deleted, has none.
    ///
    /// A sample whose day is not kept any more becomes a gap. That is rare, so the
    /// days are looked up only after the database has refused one.
    pub async fn samples_append(&self, ranges: &[Range]) -> Result<Vec<Watermark>, StoreError> {
        let mut outcome = self.append(ranges, Days::Trusted).await;
        for _ in 0..LOOKS {
            match outcome {
                Err(error) if days::is_missing(&error) => {
                    outcome = self.append(ranges, Days::LookedUp).await;
                }
                outcome => return outcome,
            }
        }
        outcome
    }

    async fn append(&self, ranges: &[Range], days: Days) -> Result<Vec<Watermark>, StoreError> {
        self.run("samples_append", Bulkhead::Ingest, |tx| async move {
            let mut acked = tx.watermarks_lock(ranges).await?;
            let mut fresh = advance(ranges, &mut acked);
            if days == Days::LookedUp {
                tx.days_look_up(&mut fresh).await?;
            }
            tx.append(&fresh).await?;
            let watermark = |(agent_id, acked_seq)| Watermark {
                agent_id,
                acked_seq,
            };
            Ok(acked.into_iter().map(watermark).collect())
        })
        .await
    }
}

impl Tx {
    async fn append(&self, fresh: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        if fresh.is_empty() {
            return Ok(());
        }
        self.history_copy(fresh).await?;
        self.gaps_insert(fresh).await?;
        self.books_move(fresh).await
    }
}

/// What each range adds to its agent's watermark, which moves on; by host, so that
/// neighbours in the index are written together.
fn advance<'a>(ranges: &'a [Range], acked: &mut BTreeMap<AgentId, i64>) -> Vec<Cow<'a, Range>> {
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
