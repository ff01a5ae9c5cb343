//! Sequence numbers: from the entries of a report to a contiguous range of an agent's numbers.
//!
//! An agent numbers its samples 1, 2, 3, … without end. The invariant that makes every number account
//! for itself: **each number from the first to the last of a range is either a sample or inside exactly
//! one gap that says why there is no sample** (skipped by the agent, declared lost by the agent, or
//! rejected by the service). Ranges of one stream follow each other without overlap, so the watermark can
//! advance from the end of one range to the end of the next, and stored + rejected + gaps = acknowledged
//! holds at every commit.
//!
//! Three cases need care:
//! - *Repetition.* After a reconnect an agent resends what was not acknowledged. Entries below the next
//!   expected number are dropped here; what another stream stored meanwhile is dropped by the watermark
//!   in the database.
//! - *Holes.* If an entry begins above the next expected number, the numbers in between become a gap of
//!   kind `NotSent`. The agent can no longer fill it: the range claims these numbers.
//! - *Overlap.* A gap sorts before a sample with the same number. What was declared lost stays lost, even
//!   if the same report carries the sample, because the agent may have forgotten it on disk already.

use std::borrow::Cow;

use svc_store::{AgentId, GapKind, GapRow, HostId, Range, SampleRow};

/// The next sequence number that a stream expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    next: i64,
}

/// One entry of a report.
#[derive(Debug)]
pub enum Entry {
    Sample(Box<SampleRow>),
    /// The sample breaks a rule and is rejected by itself; the rest of the report is taken.
    Rejected {
        seq: i64,
        reason: &'static str,
    },
    /// The agent declares that it lost these samples.
    Lost {
        first: i64,
        last: i64,
        reason: String,
    },
}

impl Entry {
    fn first(&self) -> i64 {
        match self {
            Self::Sample(sample) => sample.seq,
            Self::Rejected { seq, .. } => *seq,
            Self::Lost { first, .. } => *first,
        }
    }

    fn last(&self) -> i64 {
        match self {
            Self::Lost { last, .. } => *last,
            entry => entry.first(),
        }
    }
}

impl Numbering {
    pub fn after(acked_seq: i64) -> Self {
        Self {
            next: acked_seq + 1,
        }
    }

    /// The last number that the stream has brought; at first, the watermark with which it was opened.
    pub fn last(&self) -> i64 {
        self.next - 1
    }

    /// The range that a report adds to what the stream has brought already; `None` if it adds nothing.
    pub fn take(
        &mut self,
        agent_id: AgentId,
        host_id: HostId,
        mut entries: Vec<Entry>,
    ) -> Option<Range> {
        // The sort is stable, so that entries of the same number keep their order: gaps come first.
        entries.sort_by_key(Entry::first);
        let first_seq = self.next;
        let is_sample = |entry: &&Entry| matches!(entry, Entry::Sample(_));
        let mut samples = Vec::with_capacity(entries.iter().filter(is_sample).count());
        let mut gaps = Vec::new();
        for entry in entries {
            let (first, last) = (entry.first(), entry.last());
            if last < self.next {
                continue;
            }
            if first > self.next {
                let hole = (self.next, first - 1);
                add_gap(&mut gaps, hole, GapKind::NotSent, "not sent");
            }
            let rest = (first.max(self.next), last);
            match entry {
                Entry::Sample(sample) => samples.push(*sample),
                Entry::Rejected { reason, .. } => {
                    add_gap(&mut gaps, rest, GapKind::Rejected, reason);
                }
                Entry::Lost { reason, .. } => add_gap(&mut gaps, rest, GapKind::Declared, reason),
            }
            self.next = last + 1;
        }
        let last_seq = self.last();
        let range = Range {
            agent_id,
            host_id,
            first_seq,
            last_seq,
            samples,
            gaps,
        };
        (last_seq >= first_seq).then_some(range)
    }
}

/// Adjacent numbers that are missing for the same reason form one gap.
fn add_gap(
    gaps: &mut Vec<GapRow>,
    (first_seq, last_seq): (i64, i64),
    kind: GapKind,
    reason: impl Into<Cow<'static, str>>,
) {
    let reason = reason.into();
    match gaps.last_mut() {
        Some(last)
            if last.last_seq + 1 == first_seq && last.kind == kind && last.reason == reason =>
        {
            last.last_seq = last_seq;
        }
        _ => gaps.push(GapRow {
            first_seq,
            last_seq,
            kind,
            reason,
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn sample(seq: i64) -> Entry {
        Entry::Sample(Box::new(SampleRow {
            seq,
            ..SampleRow::default()
        }))
    }

    fn lost(first: i64, last: i64) -> Entry {
        let reason = "disk full".into();
        Entry::Lost {
            first,
            last,
            reason,
        }
    }

    fn take(numbering: &mut Numbering, entries: Vec<Entry>) -> Option<Range> {
        numbering.take(AgentId(Uuid::nil()), HostId(Uuid::nil()), entries)
    }

    fn seqs(range: &Range) -> Vec<i64> {
        range.samples.iter().map(|sample| sample.seq).collect()
    }

    fn gaps(range: &Range) -> Vec<(i64, i64, GapKind)> {
        let gaps = range.gaps.iter();
        gaps.map(|gap| (gap.first_seq, gap.last_seq, gap.kind))
            .collect()
    }

    #[test]
    fn repeated_samples_are_dropped_and_skipped_numbers_become_gaps() {
        let mut numbering = Numbering::after(3);
        let entries = [7, 2, 4, 3, 4].map(sample).into();
        let range = take(&mut numbering, entries).unwrap();
        assert_eq!((range.first_seq, range.last_seq), (4, 7));
        assert_eq!(seqs(&range), [4, 7]);
        assert_eq!(gaps(&range), [(5, 6, GapKind::NotSent)]);
        let repetition = take(&mut numbering, vec![sample(7)]);
        assert_eq!(repetition, None, "nothing new");
    }

    #[test]
    fn samples_inside_a_declared_gap_are_lost() {
        let mut numbering = Numbering::after(0);
        let declared = [lost(2, 4), lost(3, 4)];
        let entries = declared.into_iter().chain([1, 3, 5].map(sample)).collect();
        let range = take(&mut numbering, entries).unwrap();
        assert_eq!(seqs(&range), [1, 5]);
        assert_eq!(gaps(&range), [(2, 4, GapKind::Declared)]);
    }

    #[test]
    fn a_rejected_sample_is_a_gap_of_its_own() {
        let reason = "a rule";
        let rejected = Entry::Rejected { seq: 2, reason };
        let entries = vec![sample(1), rejected, sample(3)];
        let range = take(&mut Numbering::after(0), entries).unwrap();
        assert_eq!(seqs(&range), [1, 3]);
        assert_eq!(gaps(&range), [(2, 2, GapKind::Rejected)]);
    }

    proptest! {
        #[test]
        fn every_number_of_a_range_is_a_sample_or_in_one_gap(
            acked in 0_i64..20,
            seqs in prop::collection::vec(1_i64..40, 0..30),
            declared in prop::collection::vec((1_i64..40, 0_i64..5), 0..5),
        ) {
            let declared = declared.into_iter().map(|(first, length)| lost(first, first + length));
            let entries = declared.chain(seqs.into_iter().map(sample)).collect();
            let mut numbering = Numbering::after(acked);
            let Some(range) = take(&mut numbering, entries) else { return Ok(()) };
            prop_assert_eq!(range.first_seq, acked + 1);
            let mut covered: Vec<i64> = range.samples.iter().map(|sample| sample.seq).collect();
            covered.extend(range.gaps.iter().flat_map(|gap| gap.first_seq..=gap.last_seq));
            covered.sort_unstable();
            prop_assert_eq!(covered, (range.first_seq..=range.last_seq).collect::<Vec<_>>());
            prop_assert_eq!(numbering, Numbering::after(range.last_seq));
        }
    }
}
