//! Appending samples exactly once, in one transaction for many agents.
//!
//! **Watermark.** An agent numbers its samples 1, 2, 3, … without holes; a number without a
//! sample is in a gap. `acked_seq` in `agent_state` is the highest number such that it and all
//! lower numbers are committed as samples or gaps.
//!
//! **Exactly once.** Ranges arrive more than once and out of order: agents resend after a
//! reconnect, the queue redelivers, and several consumers run at once. Almost every range continues
//! exactly above its agent's watermark: `runs` stores all of those by one call. The others take the
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
//! **Locked rows.** A row that another transaction has locked for long delays the acknowledgements of no other agent: a
//! batch that has waited 250 ms is stored again by the general path, which leaves those agents out.
//!
//! **Lock order.** Rows of `agent_state` are locked in the order of the agents' ids before
//! anything is written, so that two appends cannot deadlock.

mod advance;
mod columns;
mod hours;
mod lists;
mod range;
mod runs;
mod scalars;
mod shape;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    pg::{error::Unavailability, tx::TxLimits},
    prelude::*,
    values::vitals::PartKind,
};
use advance::Locked;
pub(crate) use scalars::SCALARS;

/// How long a batch waits for the row of an agent or a host before it is stored without it. The function
/// `samples_append` has the same limit.
const LOCKED_ROW: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default, PartialEq)]
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

/// The vitals that not every host has.
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

text_enum! {
    pub enum GapKind {
        NotSent = "not sent",
        Declared = "declared",
        Rejected = "rejected",
        /// The database rejected them repeatedly.
        DeadLetter = "dead letter",
    }
    else NotSent
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

impl Store {
    /// Stores ranges and returns the committed watermarks of their agents. An agent that is
    /// not active, or was deleted, has none. It is an error if an agent was left out because its row
    /// is locked.
    pub async fn samples_append(&self, ranges: &[Range]) -> Result<Vec<Watermark>> {
        let mut acked = BTreeMap::new();
        let left_out = self.samples_append_to(&mut acked, ranges).await?;
        if !left_out.is_empty() {
            return Err(StoreError::unavailable(Unavailability::Locked));
        }
        let watermark = |(agent_id, acked_seq)| Watermark {
            agent_id,
            acked_seq,
        };
        Ok(acked.into_iter().map(watermark).collect())
    }

    /// Stores ranges, for callers that repeat what failed. `acked` has the watermarks that are known to be committed. Ranges
    /// that they cover are passed over, and the watermarks that this call commits are added, even if a later part of it fails.
    /// So the same call can be repeated, and stores nothing twice.
    ///
    /// A locked row of one agent or host does not keep the others from being stored. The agents that were left out because of
    /// one are returned; they have a watermark in `acked`, which is 0 if none is known. Their ranges are to be delivered again.
    pub async fn samples_append_to(
        &self,
        acked: &mut BTreeMap<AgentId, i64>,
        ranges: &[Range],
    ) -> Result<Vec<AgentId>> {
        let missing = ranges.iter().filter(|range| {
            let acked = acked.get(&range.agent_id);
            acked.is_none_or(|acked| *acked < range.last_seq)
        });
        let (runs, mut others) = runs::runs(missing);
        let mut locked = Locked::Wait;
        match self.runs_append(&runs).await {
            Ok(left) => {
                acked.extend(runs.iter().map(|run| (run.agent_id, run.last_seq)));
                for index in left {
                    acked.remove(&runs[index].agent_id);
                    others.extend(&runs[index].ranges);
                }
            }
            Err(error) if error.is_lock_timeout() => {
                locked = Locked::Skip;
                others.extend(runs.iter().flat_map(|run| &run.ranges));
            }
            Err(error) => return Err(error),
        }
        let appended = match self.append(&others, locked).await {
            Err(error) if error.is_lock_timeout() && locked == Locked::Wait => {
                self.append(&others, Locked::Skip).await?
            }
            outcome => outcome?,
        };
        acked.extend(appended.acked);
        for agent in &appended.left_out {
            acked.entry(*agent).or_insert(0);
        }
        Ok(appended.left_out)
    }

    /// The general path.
    async fn append(&self, ranges: &[&Range], locked: Locked) -> Result<Appended> {
        if ranges.is_empty() {
            return Ok(Appended::default());
        }
        let mut limits = TxLimits::default();
        if locked == Locked::Wait {
            limits.lock = LOCKED_ROW;
        }
        let append = |tx: Tx| async move {
            let agents = tx.agents_lock(ranges, locked).await?;
            let left_out = match locked {
                Locked::Wait => Vec::new(),
                Locked::Skip => tx.agents_left_out(ranges, &agents).await?,
            };
            let watermarks = agents.iter().map(|(agent, of)| (*agent, of.acked_seq));
            let mut acked = watermarks.collect();
            let fresh = advance(ranges, &mut acked);
            tx.ranges_write(fresh, agents).await?;
            Ok(Appended { acked, left_out })
        };
        self.run_within("samples_append", Ingest, &limits, append)
            .await
    }
}

/// The result of the general path.
#[derive(Default)]
struct Appended {
    acked: BTreeMap<AgentId, i64>,
    /// Agents whose row, or that of their host, another transaction has locked.
    left_out: Vec<AgentId>,
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
