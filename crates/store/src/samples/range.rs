//! Cutting ranges above a watermark.
//!
//! **Invariant:** each number of a range is a sample or in a gap, before and after a cut.

use std::borrow::Cow;

use super::{GapKind, GapRow, Range};

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
