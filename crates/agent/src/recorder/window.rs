//! The newest samples in memory, whether or not they are on disk.
//!
//! Reports come from here, so a connected agent does not depend on its disk. The window is
//! bounded. A sample that is on disk leaves it silently, because the spool answers for its
//! number. A sample that is not on disk is given up, and its number becomes a gap.

use std::collections::VecDeque;

use prost::Message;
use svc_proto::v1;

use crate::{
    spool::{Batch, Bounds, LossReason, Losses},
    stamp::{Stamp, from_nanos},
    wire::{MAX_REPORT_BYTES, MAX_REPORT_SAMPLES},
};

/// About a day of samples at an interval of 30 s.
const MOST_BYTES: usize = 1024 * 1024;
/// The memory of a sample beside its vitals.
const SAMPLE_BYTES: usize = size_of::<WindowSample>() + 16;

/// A sample in memory.
#[derive(Clone, Debug)]
pub(super) struct WindowSample {
    /// Never changes, unlike the number.
    pub id: u64,
    pub seq: u64,
    pub at: Stamp,
    /// Encoded.
    pub vitals: Vec<u8>,
    pub is_stored: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    /// In the order of their numbers. Those that are stored come first.
    entries: VecDeque<WindowSample>,
    bytes: usize,
    /// The window answers for every number from this one on.
    from: u64,
    /// Numbers without a sample, not below `from` when they were lost.
    pub lost: Losses,
}

impl Window {
    pub fn new(from: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            from,
            lost: Losses::default(),
        }
    }

    pub fn answers_for(&self, seq: u64) -> bool {
        seq >= self.from
    }

    /// Adds a sample; `reason` is why older ones are given up if there is no room.
    pub fn push(&mut self, entry: WindowSample, reason: LossReason) {
        self.bytes += size(&entry);
        self.entries.push_back(entry);
        while self.bytes > MOST_BYTES
            && let Some(oldest) = self.pop()
        {
            match oldest.is_stored {
                true => self.from = oldest.seq + 1,
                false => self.lost.add(oldest.seq, oldest.seq, reason),
            }
        }
    }

    pub fn unstored(&self) -> Option<&WindowSample> {
        self.entries.get(self.stored_count())
    }

    pub fn unstored_count(&self) -> usize {
        self.entries.len() - self.stored_count()
    }

    /// The spool has this sample under this number. `false`: it has another number now.
    pub fn set_stored(&mut self, id: u64, seq: u64) -> bool {
        let found = self.entries.iter_mut().find(|entry| entry.id == id);
        match found {
            Some(entry) => {
                entry.is_stored = entry.seq == seq;
                entry.is_stored
            }
            None => true, // It was acknowledged meanwhile.
        }
    }

    /// The service has acknowledged everything up to this number.
    pub fn forget(&mut self, up_to: u64) {
        while self.entries.front().is_some_and(|entry| entry.seq <= up_to) {
            self.pop();
        }
        self.from = self.from.max(up_to + 1);
        self.lost.forget(up_to);
    }

    /// Adds `by` to every number above `after`.
    pub fn shift(&mut self, after: u64, by: u64) {
        let first = self.entries.partition_point(|entry| entry.seq <= after);
        for entry in self.entries.iter_mut().skip(first) {
            entry.seq += by;
        }
        self.lost.shift(after, by);
    }

    /// Keeps the samples that are not stored, with new numbers from `next` on, after as many
    /// lost numbers as there are; returns the number after the last.
    pub fn renumber(&mut self, mut next: u64) -> u64 {
        self.entries.retain(|entry| !entry.is_stored);
        self.bytes = self.entries.iter().map(size).sum();
        let ranges = self.lost.iter();
        let lost: u64 = ranges.map(|loss| loss.last - loss.first + 1).sum();
        (self.from, self.lost) = (next, Losses::default());
        if lost > 0 {
            self.lost.add(next, next + lost - 1, LossReason::NotStored);
            next += lost;
        }
        for entry in &mut self.entries {
            entry.seq = next;
            next += 1;
        }
        next
    }

    /// The report that follows `after`, up to `last`.
    pub fn report(&self, after: u64, last: u64) -> v1::Report {
        let bounds = Bounds {
            entries: MAX_REPORT_SAMPLES,
            bytes: MAX_REPORT_BYTES,
            last,
        };
        let mut batch = Batch::new(after + 1, bounds);
        let first = self.entries.partition_point(|entry| entry.seq <= after);
        for entry in self.entries.iter().skip(first) {
            let sample = entry.sample();
            if batch.explain_until(entry.seq, &self.lost).is_err() || batch.sample(sample).is_err()
            {
                return batch.report;
            }
        }
        let _ = batch.explain_until(last + 1, &self.lost);
        batch.report
    }

    fn stored_count(&self) -> usize {
        self.entries.partition_point(|entry| entry.is_stored)
    }

    fn pop(&mut self) -> Option<WindowSample> {
        let entry = self.entries.pop_front()?;
        self.bytes -= size(&entry);
        Some(entry)
    }
}

impl WindowSample {
    fn sample(&self) -> v1::Sample {
        v1::Sample {
            seq: self.seq,
            sampled_at: Some(from_nanos(self.at.raw()).into()),
            vitals: v1::Vitals::decode(self.vitals.as_slice()).ok(),
        }
    }
}

fn size(entry: &WindowSample) -> usize {
    SAMPLE_BYTES + entry.vitals.len()
}
