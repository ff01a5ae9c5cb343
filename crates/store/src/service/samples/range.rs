//! Cutting ranges above a watermark, and rejecting some of their samples.
//!
//! **Invariant:** each number of a range is a sample or in a gap, before and after.

use std::{borrow::Cow, mem};

use super::{GapKind, GapRow, Range, SampleRow};

impl Range {
    /// The part of the range above the watermark `acked`. `None` if nothing is left, or if
    /// numbers between the watermark and the range are missing: storing such a range would
    /// acknowledge numbers that were never delivered.
    ///
    /// A range that starts exactly above the watermark, the usual case, is borrowed. Otherwise
    /// a gap that crosses the watermark loses its lower part.
    pub(super) fn above(&self, acked: i64) -> Option<Cow<'_, Range>> {
        if self.last_seq <= acked || self.first_seq > acked + 1 {
            return None;
        }
        if self.first_seq == acked + 1 {
            return Some(Cow::Borrowed(self));
        }
        let samples = self.samples.iter().filter(|sample| sample.seq > acked);
        let gaps = self.gaps.iter().filter(|gap| gap.last_seq > acked);
        Some(Cow::Owned(Range {
            first_seq: acked + 1,
            samples: samples.cloned().collect(),
            gaps: gaps
                .map(|gap| GapRow {
                    first_seq: gap.first_seq.max(acked + 1),
                    ..gap.clone()
                })
                .collect(),
            ..*self
        }))
    }

    /// The range with gaps instead of those samples for which `reason` is not `None`. It is asked once for
    /// each sample, in their order.
    pub(super) fn rejecting<'a>(
        range: Cow<'a, Range>,
        reason: impl FnMut(&SampleRow) -> Option<&'static str>,
    ) -> Cow<'a, Range> {
        let reasons: Vec<Option<&str>> = range.samples.iter().map(reason).collect();
        if reasons.iter().all(Option::is_none) {
            return range;
        }
        let mut range = range.into_owned();
        for (sample, reason) in mem::take(&mut range.samples).into_iter().zip(reasons) {
            match reason {
                None => range.samples.push(sample),
                Some(reason) => range.reject(sample.seq, reason),
            }
        }
        Cow::Owned(range)
    }

    /// Numbers that follow each other and have one reason are one gap.
    fn reject(&mut self, seq: i64, reason: &'static str) {
        match self.gaps.last_mut() {
            Some(gap)
                if gap.last_seq == seq - 1
                    && gap.kind == GapKind::Rejected
                    && gap.reason == reason =>
            {
                gap.last_seq = seq;
            }
            _ => self.gaps.push(GapRow {
                first_seq: seq,
                last_seq: seq,
                kind: GapKind::Rejected,
                reason: reason.into(),
            }),
        }
    }

    /// The count of numbers in gaps of these kinds.
    pub(super) fn missing(&self, kind: impl Fn(GapKind) -> bool) -> i64 {
        let gaps = self.gaps.iter().filter(|gap| kind(gap.kind));
        gaps.map(GapRow::len).sum()
    }

    /// The count of numbers that are samples.
    pub(super) fn stored(&self) -> i64 {
        i64::try_from(self.samples.len()).unwrap_or(i64::MAX)
    }
}
