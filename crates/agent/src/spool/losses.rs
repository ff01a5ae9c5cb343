//! The numbers that were given up, and why: arithmetic on ranges.
//!
//! The ranges are sorted and disjoint. A number in one of them stays lost even if its frame
//! can still be read, because the agent may have reported the loss. A missing number
//! that is in none of them counts as damaged, so every number has an answer.

use std::ops::RangeInclusive;

/// Why a number has no sample. The service stores the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    SpoolFull,
    TooOld,
    Damaged,
    DiskFull,
    /// The disk failed, but was not full.
    NotStored,
    /// The service acknowledged the sample and lost it, and the spool no longer has it.
    Forgotten,
    /// A former life of the agent may have sent a sample under this number, of which the
    /// disk has no trace.
    MaybeSent,
    /// The sample was taken before the service's time was known, and the machine was
    /// rebooted since.
    Undated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub first: u64,
    pub last: u64,
    pub reason: LossReason,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses(Vec<Loss>);

impl LossReason {
    const ALL: [Self; 8] = [
        Self::SpoolFull,
        Self::TooOld,
        Self::Damaged,
        Self::DiskFull,
        Self::NotStored,
        Self::Forgotten,
        Self::MaybeSent,
        Self::Undated,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::SpoolFull => "spool full",
            Self::TooOld => "too old",
            Self::Damaged => "spool damaged",
            Self::DiskFull => "disk full",
            Self::NotStored => "could not be stored",
            Self::Forgotten => "acknowledged before and no longer kept",
            Self::MaybeSent => "may have been sent before a restart",
            Self::Undated => "taken at an unknown time",
        }
    }

    pub(super) fn code(self) -> u8 {
        self as u8
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl Losses {
    /// The most ranges, as many as fit into the checkpoint. Beyond that, the oldest ones are
    /// dropped: their numbers stay lost, with `Damaged` as their reason.
    pub const MOST: usize = 200;

    /// Adds a range. Numbers that are lost already keep their reason.
    pub fn add(&mut self, first: u64, last: u64, reason: LossReason) {
        let free: Vec<Loss> = self.uncovered(first, last, reason);
        self.0.extend(free);
        self.0.sort_unstable_by_key(|loss| loss.first);
        self.0.dedup_by(|next, loss| {
            let joins = next.reason == loss.reason && next.first - 1 == loss.last;
            if joins {
                loss.last = next.last;
            }
            joins
        });
        self.0.drain(..self.0.len().saturating_sub(Self::MOST));
    }

    /// Ranges that explain every number from `first` to `last`, none of which has a sample.
    pub fn explain(&self, first: u64, last: u64) -> Vec<Loss> {
        let known = self.0.iter().filter_map(|loss| {
            let (first, last) = (loss.first.max(first), loss.last.min(last));
            (first <= last).then_some(Loss {
                first,
                last,
                ..*loss
            })
        });
        let mut all = self.uncovered(first, last, LossReason::Damaged);
        all.extend(known);
        all.sort_unstable_by_key(|loss| loss.first);
        all
    }

    pub fn contains(&self, seq: u64) -> bool {
        let after = self.0.partition_point(|loss| loss.first <= seq);
        after > 0 && self.0[after - 1].last >= seq
    }

    pub fn covers(&self, numbers: RangeInclusive<u64>) -> bool {
        let (first, last) = numbers.into_inner();
        self.uncovered(first, last, LossReason::Damaged).is_empty()
    }

    /// Adds `by` to every number above `after`.
    pub fn shift(&mut self, after: u64, by: u64) {
        let mut shifted = Vec::with_capacity(self.0.len() + 1);
        for loss in &self.0 {
            if loss.first <= after {
                let last = loss.last.min(after);
                shifted.push(Loss { last, ..*loss });
            }
            if loss.last > after {
                let first = loss.first.max(after + 1);
                shifted.push(Loss {
                    first: first + by,
                    last: loss.last + by,
                    ..*loss
                });
            }
        }
        self.0 = shifted;
    }

    /// Removes the numbers up to `seq`, which the service has acknowledged.
    pub fn forget(&mut self, seq: u64) {
        self.0.retain(|loss| loss.last > seq);
        if let Some(loss) = self.0.first_mut() {
            loss.first = loss.first.max(seq + 1);
        }
    }

    pub fn last(&self) -> u64 {
        self.0.last().map_or(0, |loss| loss.last)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Loss> {
        self.0.iter()
    }

    /// The parts of a range that no loss covers.
    fn uncovered(&self, first: u64, last: u64, reason: LossReason) -> Vec<Loss> {
        let (mut parts, mut from) = (Vec::new(), first);
        for loss in self.0.iter().filter(|loss| loss.last >= first) {
            if loss.first > last {
                break;
            }
            if loss.first > from {
                parts.push(Loss {
                    first: from,
                    last: loss.first - 1,
                    reason,
                });
            }
            from = loss.last + 1;
        }
        if from <= last {
            parts.push(Loss {
                first: from,
                last,
                reason,
            });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use svc_proto::contract::limits;

    use super::*;

    #[test]
    fn adjacent_losses_with_one_reason_are_one_range() {
        let mut losses = Losses::default();
        losses.add(4, 5, LossReason::DiskFull);
        losses.add(1, 2, LossReason::DiskFull);
        losses.add(3, 3, LossReason::DiskFull);
        losses.add(6, 6, LossReason::TooOld);
        let ranges: Vec<_> = losses.iter().map(|loss| (loss.first, loss.last)).collect();
        assert_eq!(ranges, [(1, 5), (6, 6)]);
    }

    #[test]
    fn a_shift_moves_the_numbers_above_its_place() {
        let mut losses = Losses::default();
        losses.add(1, 2, LossReason::TooOld);
        losses.add(4, 8, LossReason::DiskFull);
        losses.add(10, 10, LossReason::TooOld);
        losses.shift(5, 3);
        let ranges: Vec<_> = losses.iter().map(|loss| (loss.first, loss.last)).collect();
        assert_eq!(ranges, [(1, 2), (4, 5), (9, 11), (13, 13)]);
    }

    #[test]
    fn reasons_have_stable_codes_and_texts_within_the_limit() {
        for (code, reason) in LossReason::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.code()), code);
            assert_eq!(LossReason::from_code(reason.code()), Some(reason));
            assert!(reason.text().len() <= limits::MAX_TEXT_BYTES);
        }
        assert_eq!(LossReason::from_code(8), None);
    }

    fn reason() -> impl Strategy<Value = LossReason> {
        prop::sample::select(LossReason::ALL.to_vec())
    }

    proptest! {
        /// Compares with a table that has one reason per number.
        #[test]
        fn the_first_reason_stays_and_every_number_has_an_answer(
            added in prop::collection::vec((1_u64..60, 0_u64..9, reason()), 0..20),
            forgotten in 0_u64..40,
            asked in 1_u64..70,
        ) {
            let (mut losses, mut table) = (Losses::default(), [None; 80]);
            for (first, more, reason) in added {
                losses.add(first, first + more, reason);
                for seq in first..=first + more {
                    table[seq as usize].get_or_insert(reason);
                }
            }
            losses.forget(forgotten);
            table[..=forgotten as usize].fill(None);
            for seq in 1..80 {
                prop_assert_eq!(losses.contains(seq), table[seq as usize].is_some());
            }
            let mut next = asked;
            for loss in losses.explain(asked, 75) {
                prop_assert_eq!(loss.first, next);
                for seq in loss.first..=loss.last {
                    prop_assert_eq!(loss.reason, table[seq as usize].unwrap_or(LossReason::Damaged));
                }
                next = loss.last + 1;
            }
            prop_assert_eq!(next, 76);
        }
    }
}
