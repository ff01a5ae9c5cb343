//! Runs: for each agent samples that continue exactly above its watermark, stored by one call of the
//! function `samples_append`, in one round trip.
//!
//! **Exactly once.** The function moves an agent's watermark by one conditional UPDATE, and stores the
//! samples of those agents alone that it has moved. If two consumers have the same run, the second one
//! waits for the first one's row lock, sees the new watermark, and is not taken. If the reply is lost,
//! the caller repeats the call: what was committed is not taken again.
//!
//! **Bounds.** A run's hours do not go back, and none has more samples than an hour may have. Where the run begins in the
//! agent's newest hour, the function adds up what that one has.
//!
//! **Locked rows.** A call waits for them no longer than the function's `lock_timeout`. Then the general path stores what it can.
//!
//! **Lock order.** The runs are in the order of the agents' ids, and the function looks the agents up
//! in that order, the same as everywhere: two appends cannot deadlock on `agent_state`. They could
//! on `host_vitals`, when a host's agent was replaced a moment ago; PostgreSQL ends one of them, and
//! the call is repeated.

use std::collections::BTreeMap;

use super::{
    Range,
    columns::{RangeSamples, with_samples},
    hours::{MOST_OF_HOUR, hour},
};
use crate::prelude::*;

/// Ranges of one agent that together are one run: without a gap or a hole, all of one shape, their hours in order.
pub(super) struct Run<'a> {
    pub(super) ranges: Vec<&'a Range>,
    pub(super) agent_id: AgentId,
    first_seq: i64,
    pub(super) last_seq: i64,
    shape: Uuid,
    hours: Hours,
    entry: RangeSamples<'a>,
}

/// The hours of a run, in hours since the epoch.
struct Hours {
    first: i32,
    last: i32,
    samples_of_last: i32,
}

/// The ranges of agents whose ranges are a run, in the order of their ids, and the ranges of the others.
pub(super) fn runs<'a>(ranges: impl Iterator<Item = &'a Range>) -> (Vec<Run<'a>>, Vec<&'a Range>) {
    let mut agents: BTreeMap<AgentId, Vec<&Range>> = BTreeMap::new();
    for range in ranges {
        agents.entry(range.agent_id).or_default().push(range);
    }
    let (mut runs, mut others) = (Vec::with_capacity(agents.len()), Vec::new());
    for ranges in agents.into_values() {
        match Run::of(ranges) {
            Ok(run) => runs.push(run),
            Err(ranges) => others.extend(ranges),
        }
    }
    (runs, others)
}

impl<'a> Run<'a> {
    /// Gives the ranges back if they are no run.
    fn of(ranges: Vec<&'a Range>) -> Result<Run<'a>, Vec<&'a Range>> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Err(ranges);
        };
        let follows = |pair: &[&Range]| pair[1].first_seq == pair[0].last_seq + 1;
        let no_hole = ranges.windows(2).all(follows);
        let plain = |range: &&Range| range.gaps.is_empty() && range.host_id == first.host_id;
        if !no_hole || !ranges.iter().all(plain) {
            return Err(ranges);
        }
        let samples = ranges.iter().flat_map(|range| &range.samples);
        let entry = RangeSamples::new(first.host_id, samples);
        let (Some(shape), Some(hours)) = (entry.last_shape(), Hours::of(&entry)) else {
            return Err(ranges);
        };
        if entry.samples.iter().any(|(_, other)| *other != shape) {
            return Err(ranges);
        }
        Ok(Run {
            agent_id: first.agent_id,
            first_seq: first.first_seq,
            last_seq: last.last_seq,
            shape,
            hours,
            entry,
            ranges,
        })
    }
}

impl Hours {
    /// `None` if they go back, or one has too many samples.
    fn of(entry: &RangeSamples<'_>) -> Option<Hours> {
        let mut hours = entry.samples.iter().map(|(sample, _)| hour(sample));
        let first = hours.next()?;
        let (mut last, mut samples_of_last) = (first, 1);
        for hour in hours {
            samples_of_last = if hour == last { samples_of_last + 1 } else { 1 };
            if hour < last || samples_of_last > MOST_OF_HOUR {
                return None;
            }
            last = hour;
        }
        Some(Hours {
            first,
            last,
            samples_of_last,
        })
    }
}

impl Store {
    /// Stores runs. Returns the indices of those that were not taken.
    pub(super) async fn runs_append(&self, runs: &[Run<'_>]) -> Result<Vec<usize>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let columns = Arrays::default()
            .value(MOST_OF_HOUR)
            .column(runs, |run| run.agent_id.0)
            .column(runs, |run| run.entry.host_id.0)
            .column(runs, |run| run.first_seq)
            .column(runs, |run| run.last_seq)
            .column(runs, |run| run.shape)
            .column(runs, |run| run.hours.first)
            .column(runs, |run| run.hours.last)
            .column(runs, |run| run.hours.samples_of_last);
        let entries: Vec<&RangeSamples<'_>> = runs.iter().map(|run| &run.entry).collect();
        let columns = with_samples(columns, &entries);
        let sql = columns.call("samples_append", "samples_append");
        let params = columns.params();
        let rows = self.call("samples_append", Ingest, &sql, &params);
        let mut left = Vec::new();
        for row in rows.await? {
            let places: Vec<i32> = row.try_get(0)?;
            left.extend(places.into_iter().filter_map(index));
        }
        Ok(left)
    }
}

/// The index of a place, which counts from 1.
fn index(place: i32) -> Option<usize> {
    usize::try_from(place).ok()?.checked_sub(1)
}
