//! A report in the making: every number from its first to its last is a sample or
//! stands in a gap, however it is cut to its bounds.

use prost::Message;
use svc_proto::v1;

use super::losses::{Loss, Losses};

/// What a field costs beside its content: a tag and a length of up to three bytes.
const FRAME: usize = 4;

#[derive(Debug)]
pub(super) struct Batch {
    pub report: v1::Report,
    /// The first number that it says nothing of.
    pub next: u64,
    pub bounds: Bounds,
    bytes: usize,
}

/// At most so many samples, so many gaps, and so many bytes; but never nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub entries: usize,
    pub bytes: usize,
    /// The last number that is wanted.
    pub last: u64,
}

/// The batch takes no more.
pub(super) struct Full;

impl Batch {
    pub fn new(first: u64, bounds: Bounds) -> Self {
        Self {
            report: v1::Report::default(),
            next: first,
            bounds,
            bytes: 0,
        }
    }

    /// Gaps for all numbers before `seq`.
    pub fn explain_until(&mut self, seq: u64, lost: &Losses) -> Result<(), Full> {
        let last = seq.saturating_sub(1).min(self.bounds.last);
        if self.next <= last {
            for loss in lost.explain(self.next, last) {
                self.gap(loss)?;
            }
        }
        Ok(())
    }

    /// Its number must be the next.
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
        let (bytes, is_first) = (self.bytes + bytes + FRAME, self.bytes == 0);
        if !is_first && (entries >= self.bounds.entries || bytes > self.bounds.bytes) {
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }
}
