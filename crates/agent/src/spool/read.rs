//! Reading: the samples and gaps that follow a number, without a hole.

use std::{io, time::SystemTime};

use svc_proto::v1;

use super::{
    Spool, SpoolError, Usage,
    batch::{Batch, Bounds, Full},
    frame::{Frame, Scan},
    segment,
};
use crate::stamp::{Stamp, from_nanos};

impl Spool {
    /// The report that follows `after`. Its samples and gaps cover every number from there
    /// to the last one that it names. It holds at most `most` of each and about
    /// `most_bytes`, but at least one entry if any number follows. From now on these
    /// numbers count as sent.
    pub fn read(
        &self,
        after: u64,
        most: usize,
        most_bytes: usize,
    ) -> Result<v1::Report, SpoolError> {
        let bounds = Bounds {
            entries: most,
            bytes: most_bytes,
            last: self.next - 1,
        };
        let batch = self.collect(after.max(self.checkpoint.acked), bounds)?;
        self.sent.set(self.sent.get().max(batch.next - 1));
        Ok(batch.report)
    }

    /// Reads the segment that is partly acknowledged, if there is one. A segment that cannot
    /// be read counts as if it held no sample.
    pub fn usage(&self) -> Usage {
        let unacked = self.next - 1 - self.checkpoint.acked;
        let holding = self.holding(self.checkpoint.acked + 1);
        let (mut samples, mut oldest) = self.partly_acked(holding).unwrap_or_default();
        for segment in self.segments.iter().skip(holding + 1) {
            samples += segment.samples;
            oldest = oldest.or_else(|| known_time(segment.began).filter(|_| segment.samples > 0));
        }
        Usage {
            samples,
            bytes: self.segments.iter().map(|segment| segment.bytes).sum(),
            oldest,
            given_up: unacked.saturating_sub(samples),
        }
    }

    /// The batch is complete if its `next` is past `bounds.last`.
    pub(super) fn collect(&self, after: u64, bounds: Bounds) -> Result<Batch, SpoolError> {
        let mut batch = Batch::new(after + 1, bounds);
        for index in self.holding(after + 1)..self.segments.len() {
            if self.segments[index].first > bounds.last {
                break;
            }
            let bytes = self.bytes_of(index).map_err(SpoolError::Unreadable)?;
            if self.collect_from(index, &bytes, &mut batch).is_err() {
                return Ok(batch);
            }
        }
        let _ = batch.explain_until(bounds.last + 1, &self.checkpoint.lost);
        Ok(batch)
    }

    /// The index of the segment that owns a number, or 0.
    pub(super) fn holding(&self, seq: u64) -> usize {
        let after = self
            .segments
            .partition_point(|segment| segment.first <= seq);
        after.saturating_sub(1)
    }

    /// The last number that a segment owns.
    pub(super) fn last_of(&self, index: usize) -> u64 {
        let next = self.segments.get(index + 1);
        next.map_or(self.next, |segment| segment.first) - 1
    }

    pub(super) fn bytes_of(&self, index: usize) -> io::Result<Vec<u8>> {
        segment::load(&self.dir, self.segments[index].first)
    }

    /// The frames of a segment whose numbers are not lost.
    pub(super) fn frames_of<'a>(
        &self,
        index: usize,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = Frame<'a>> {
        let numbers = self.segments[index].first..=self.last_of(index);
        let lost = &self.checkpoint.lost;
        Scan::new(bytes, numbers).filter(|frame| !lost.contains(frame.seq))
    }

    fn collect_from(&self, index: usize, bytes: &[u8], batch: &mut Batch) -> Result<(), Full> {
        for frame in self.frames_of(index, bytes) {
            if frame.seq < batch.next {
                continue;
            }
            if let Some(sample) = frame.sample() {
                batch.explain_until(sample.seq, &self.checkpoint.lost)?;
                batch.sample(sample)?;
            }
        }
        Ok(())
    }

    fn partly_acked(&self, index: usize) -> Option<(u64, Option<SystemTime>)> {
        self.segments.get(index)?;
        let bytes = self.bytes_of(index).ok()?;
        let waiting = |frame: &Frame| frame.seq > self.checkpoint.acked && frame.is_whole();
        let mut frames = self.frames_of(index, &bytes).filter(waiting).peekable();
        let oldest = frames.peek().and_then(|frame| known_time(frame.at));
        Some((frames.count() as u64, oldest))
    }
}

fn known_time(at: i64) -> Option<SystemTime> {
    (!Stamp::from_raw(at).is_moment()).then(|| from_nanos(at))
}
