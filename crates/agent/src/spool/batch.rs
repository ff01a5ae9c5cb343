//! Building a report within bounds. Every number from its first to its last is a sample
//! or part of a gap, wherever the bounds cut it off.

use prost::Message;
use svc_proto::v1;

use super::losses::{Loss, Losses};

/// The bytes of an entry beside its content: a tag, and a length of up to three bytes.
const ENTRY_BYTES: usize = 4;

#[derive(Debug)]
pub(crate) struct Batch {
    pub report: v1::Report,
    /// The first number that the report does not cover.
    pub next: u64,
    pub bounds: Bounds,
    bytes: usize,
}

/// The bounds of a report. A first entry that exceeds them is taken nevertheless, so that
/// reading always makes progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub entries: usize,
    pub bytes: usize,
    /// The last number that the report may cover.
    pub last: u64,
}

/// No further entry fits into the batch.
pub(crate) struct Full;

impl Batch {
    pub fn new(first: u64, bounds: Bounds) -> Self {
        Self {
            report: v1::Report::default(),
            next: first,
            bounds,
            bytes: 0,
        }
    }

    /// Adds gaps for all numbers before `seq` that are not covered yet.
    pub fn explain_until(&mut self, seq: u64, lost: &Losses) -> Result<(), Full> {
        let last = seq.saturating_sub(1).min(self.bounds.last);
        if self.next <= last {
            for loss in lost.explain(self.next, last) {
                self.gap(loss)?;
            }
        }
        Ok(())
    }

    /// Adds a sample, whose number must be `next`.
    pub fn sample(&mut self, sample: v1::Sample) -> Result<(), Full> {
        if sample.seq > self.bounds.last {
            return Err(Full);
        }
        self.room(self.report.samples.len(), sample.encoded_len())?;
        self.next = sample.seq + 1;
        self.report.samples.push(sample);
        Ok(())
    }

    fn gap(&mut self, loss: Loss) -> Result<(), Full> {
        let gap = v1::Gap {
            first_seq: loss.first,
            last_seq: loss.last,
            reason: loss.reason.text().into(),
        };
        self.room(self.report.gaps.len(), gap.encoded_len())?;
        self.next = loss.last + 1;
        self.report.gaps.push(gap);
        Ok(())
    }

    fn room(&mut self, entries: usize, bytes: usize) -> Result<(), Full> {
        let (bytes, is_first) = (self.bytes + bytes + ENTRY_BYTES, self.bytes == 0);
        if !is_first && (entries >= self.bounds.entries || bytes > self.bounds.bytes) {
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }
}
