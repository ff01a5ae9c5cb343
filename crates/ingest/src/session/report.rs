//! From a report to a contiguous range of an agent's numbers: pure arithmetic.
//!
//! Every number from the first to the last of a range is a sample, or stands in a
//! gap that says why it is not: skipped, declared lost, or rejected. A sample that
//! breaks the rules is rejected by itself; the rest of the report is taken.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use svc_proto::v1;
use svc_store::{AgentId, DiskRow, GapKind, GapRow, HostId, Range, SampleRow};

const MAX_SAMPLES: usize = 500;
const MAX_GAPS: usize = 500;
const MAX_DISKS: usize = 64;
const MAX_TEXT: usize = 255;
/// How far ahead of the database's clock a sample may claim to be.
const MAX_AHEAD: Duration = Duration::from_mins(5);
/// The last number that leaves room for a next one.
const MAX_SEQ: u64 = i64::MAX as u64 - 1;

/// What times are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The database's clock.
    pub now: Timestamp,
    pub retention: Duration,
}

/// A report that no single sample can be blamed for: the stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("a report carries at most {MAX_SAMPLES} samples and {MAX_GAPS} gaps")]
    TooMany,
    #[error("sequence numbers start at 1 and fit a signed 64-bit number")]
    Number,
    #[error("a gap ends before it begins")]
    Backwards,
    #[error("a gap's reason is longer than {MAX_TEXT} bytes or holds a control character")]
    Reason,
}

/// The next number that a stream expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    next: i64,
}

enum Entry {
    Gap(String),
    Sample(Box<v1::Sample>),
}

impl Numbering {
    pub fn after(acked_seq: i64) -> Self {
        Self {
            next: acked_seq + 1,
        }
    }

    /// What a report adds to what the stream has brought already; `None` for a repetition.
    pub fn take(
        &mut self,
        agent_id: AgentId,
        host_id: HostId,
        report: v1::Report,
        rules: &Rules,
    ) -> Result<Option<Range>, Violation> {
        let first_seq = self.next;
        let (mut samples, mut gaps) = (Vec::new(), Vec::new());
        for (first, last, entry) in entries(report)? {
            if last < self.next {
                continue;
            }
            if first > self.next {
                miss(
                    &mut gaps,
                    self.next,
                    first - 1,
                    GapKind::NotSent,
                    "not sent",
                );
            }
            let first = first.max(self.next);
            match entry {
                Entry::Gap(reason) => miss(&mut gaps, first, last, GapKind::Declared, reason),
                Entry::Sample(sample) => match row(first, *sample, rules) {
                    Ok(sample) => samples.push(sample),
                    Err(reason) => miss(&mut gaps, first, first, GapKind::Rejected, reason),
                },
            }
            self.next = last + 1;
        }
        let last_seq = self.next - 1;
        let range = Range {
            agent_id,
            host_id,
            first_seq,
            last_seq,
            samples,
            gaps,
        };
        Ok((last_seq >= first_seq).then_some(range))
    }
}

/// Samples and gaps in the order of their numbers. A gap comes before a sample of
/// the same number: what was declared lost is recorded as lost.
fn entries(report: v1::Report) -> Result<Vec<(i64, i64, Entry)>, Violation> {
    if report.samples.len() > MAX_SAMPLES || report.gaps.len() > MAX_GAPS {
        return Err(Violation::TooMany);
    }
    let mut entries = Vec::with_capacity(report.samples.len() + report.gaps.len());
    for gap in report.gaps {
        let (first, last) = (number(gap.first_seq)?, number(gap.last_seq)?);
        if last < first {
            return Err(Violation::Backwards);
        }
        if !is_text(&gap.reason) {
            return Err(Violation::Reason);
        }
        entries.push((first, last, Entry::Gap(gap.reason)));
    }
    for sample in report.samples {
        let seq = number(sample.seq)?;
        entries.push((seq, seq, Entry::Sample(Box::new(sample))));
    }
    entries.sort_by_key(|(first, _, _)| *first);
    Ok(entries)
}

fn number(seq: u64) -> Result<i64, Violation> {
    if !(1..=MAX_SEQ).contains(&seq) {
        return Err(Violation::Number);
    }
    i64::try_from(seq).map_err(|_| Violation::Number)
}

/// Numbers that follow one another and are missing for the same reason are one gap.
fn miss(
    gaps: &mut Vec<GapRow>,
    first_seq: i64,
    last_seq: i64,
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

/// The sample as it is stored, or the rule that it breaks.
fn row(seq: i64, sample: v1::Sample, rules: &Rules) -> Result<SampleRow, &'static str> {
    let vitals = sample.vitals.ok_or("vitals are missing")?;
    let load = [vitals.load_1m, vitals.load_5m, vitals.load_15m];
    if !load.iter().all(|load| load.is_finite() && *load >= 0.0) {
        return Err("a load is not a number of 0 or more");
    }
    if !(0.0..=100.0).contains(&vitals.cpu_percent) {
        return Err("cpu_percent is not between 0 and 100");
    }
    Ok(SampleRow {
        seq,
        sampled_at: time(sample.sampled_at, rules)?,
        cpu_percent: vitals.cpu_percent,
        load,
        memory_used_bytes: signed(vitals.memory_used_bytes)?,
        memory_total_bytes: signed(vitals.memory_total_bytes)?,
        swap_used_bytes: signed(vitals.swap_used_bytes)?,
        swap_total_bytes: signed(vitals.swap_total_bytes)?,
        uptime_seconds: signed(vitals.uptime_seconds)?,
        process_count: i64::from(vitals.process_count),
        network_rx_bytes: signed(vitals.network_rx_bytes)?,
        network_tx_bytes: signed(vitals.network_tx_bytes)?,
        disks: disks(vitals.disks)?,
    })
}

fn time(
    sampled_at: Option<prost_types::Timestamp>,
    rules: &Rules,
) -> Result<Timestamp, &'static str> {
    let given = sampled_at.ok_or("sampled_at is missing")?;
    let at = Timestamp::new(given.seconds, given.nanos).map_err(|_| "sampled_at is not a time")?;
    let ahead = at.duration_since(rules.now);
    if ahead > jiff::SignedDuration::try_from(MAX_AHEAD).unwrap_or_default() {
        return Err("sampled_at is more than 5 minutes ahead of the database's clock");
    }
    if -ahead > jiff::SignedDuration::try_from(rules.retention).unwrap_or(jiff::SignedDuration::MAX)
    {
        return Err("sampled_at is older than the retention");
    }
    Ok(at)
}

fn disks(disks: Vec<v1::Disk>) -> Result<Vec<DiskRow>, &'static str> {
    if disks.len() > MAX_DISKS {
        return Err("more than 64 disks");
    }
    disks.into_iter().map(disk).collect()
}

fn disk(disk: v1::Disk) -> Result<DiskRow, &'static str> {
    if ![&disk.mount_point, &disk.device, &disk.fs_type]
        .into_iter()
        .all(|text| is_text(text))
    {
        return Err("a disk's text is longer than 255 bytes or holds a control character");
    }
    Ok(DiskRow {
        mount_point: disk.mount_point,
        device: disk.device,
        fs_type: disk.fs_type,
        total_bytes: signed(disk.total_bytes)?,
        used_bytes: signed(disk.used_bytes)?,
    })
}

fn signed(number: u64) -> Result<i64, &'static str> {
    i64::try_from(number).map_err(|_| "a number is beyond a signed 64-bit one")
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn rules() -> Rules {
        Rules {
            now: Timestamp::from_second(NOW).unwrap(),
            retention: Duration::from_hours(24 * 7),
        }
    }

    fn sample(seq: u64) -> v1::Sample {
        let sampled_at = Some(prost_types::Timestamp {
            seconds: NOW,
            nanos: 0,
        });
        v1::Sample {
            seq,
            sampled_at,
            vitals: Some(v1::Vitals {
                cpu_percent: 50.0,
                ..Default::default()
            }),
        }
    }

    fn lost(first_seq: u64, last_seq: u64) -> v1::Gap {
        v1::Gap {
            first_seq,
            last_seq,
            reason: "disk full".into(),
        }
    }

    fn take(
        numbering: &mut Numbering,
        samples: Vec<v1::Sample>,
        gaps: Vec<v1::Gap>,
    ) -> Option<Range> {
        let ids = (AgentId(Uuid::nil()), HostId(Uuid::nil()));
        numbering
            .take(ids.0, ids.1, v1::Report { samples, gaps }, &rules())
            .unwrap()
    }

    fn seqs(range: &Range) -> Vec<i64> {
        range.samples.iter().map(|sample| sample.seq).collect()
    }

    fn gaps(range: &Range) -> Vec<(i64, i64, GapKind)> {
        range
            .gaps
            .iter()
            .map(|gap| (gap.first_seq, gap.last_seq, gap.kind))
            .collect()
    }

    #[test]
    fn repeated_samples_are_left_out_and_skipped_numbers_are_gaps() {
        let mut numbering = Numbering::after(3);
        let range = take(
            &mut numbering,
            vec![sample(7), sample(2), sample(4), sample(3), sample(4)],
            vec![],
        )
        .unwrap();
        assert_eq!((range.first_seq, range.last_seq), (4, 7));
        assert_eq!(seqs(&range), [4, 7]);
        assert_eq!(gaps(&range), [(5, 6, GapKind::NotSent)]);
        assert_eq!(
            take(&mut numbering, vec![sample(7)], vec![]),
            None,
            "nothing new"
        );
    }

    #[test]
    fn what_was_declared_lost_is_lost_even_if_it_comes_too() {
        let mut numbering = Numbering::after(0);
        let range = take(
            &mut numbering,
            vec![sample(1), sample(3), sample(5)],
            vec![lost(2, 4), lost(3, 4)],
        )
        .unwrap();
        assert_eq!(seqs(&range), [1, 5]);
        assert_eq!(gaps(&range), [(2, 4, GapKind::Declared)]);
    }

    #[test]
    fn a_sample_that_breaks_a_rule_is_rejected_by_itself() {
        let vitals = |change: fn(&mut v1::Vitals)| {
            let mut broken = sample(2);
            broken.vitals.iter_mut().for_each(change);
            broken
        };
        let at = |seconds, nanos| v1::Sample {
            sampled_at: Some(prost_types::Timestamp { seconds, nanos }),
            ..sample(2)
        };
        let nul = |v: &mut v1::Vitals| {
            let mount_point = "/\0".into();
            v.disks = vec![v1::Disk {
                mount_point,
                ..Default::default()
            }];
        };
        for broken in [
            vitals(|v| v.cpu_percent = f64::NAN),
            vitals(|v| v.cpu_percent = 100.1),
            vitals(|v| v.cpu_percent = -0.1),
            vitals(|v| v.load_5m = f64::INFINITY),
            vitals(|v| v.load_1m = -1.0),
            vitals(|v| v.memory_used_bytes = u64::MAX),
            vitals(|v| v.network_tx_bytes = 1 << 63),
            vitals(|v| v.disks = vec![v1::Disk::default(); 65]),
            vitals(nul),
            v1::Sample {
                vitals: None,
                ..sample(2)
            },
            v1::Sample {
                sampled_at: None,
                ..sample(2)
            },
            at(NOW + 301, 0),
            at(NOW - 7 * 86_400 - 1, 0),
            at(-62_135_596_800, 0),
            at(253_402_300_799, 0),
            at(i64::MAX, i32::MIN),
        ] {
            let shown = format!("{broken:?}");
            let range = take(
                &mut Numbering::after(0),
                vec![sample(1), broken, sample(3)],
                vec![],
            )
            .unwrap();
            assert_eq!(seqs(&range), [1, 3], "{shown}");
            assert_eq!(gaps(&range), [(2, 2, GapKind::Rejected)], "{shown}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_recorded_end_the_stream() {
        let take = |samples, gaps| {
            let ids = (AgentId(Uuid::nil()), HostId(Uuid::nil()));
            Numbering::after(0).take(ids.0, ids.1, v1::Report { samples, gaps }, &rules())
        };
        assert_eq!(take(vec![sample(0)], vec![]), Err(Violation::Number));
        assert_eq!(take(vec![sample(u64::MAX)], vec![]), Err(Violation::Number));
        assert_eq!(
            take(vec![sample(i64::MAX as u64)], vec![]),
            Err(Violation::Number)
        );
        assert!(take(vec![sample(i64::MAX as u64 - 1)], vec![]).is_ok());
        assert_eq!(take(vec![], vec![lost(4, 3)]), Err(Violation::Backwards));
        assert_eq!(take(vec![sample(1); 501], vec![]), Err(Violation::TooMany));
        let loud = v1::Gap {
            reason: "x".repeat(256),
            ..lost(1, 2)
        };
        assert_eq!(take(vec![], vec![loud]), Err(Violation::Reason));
    }

    proptest! {
        /// The books: whatever comes, each number of the range is counted exactly once.
        #[test]
        fn every_number_of_a_range_is_a_sample_or_in_one_gap(
            acked in 0_i64..20,
            seqs in prop::collection::vec(1_u64..40, 0..30),
            declared in prop::collection::vec((1_u64..40, 0_u64..5), 0..5),
        ) {
            let gaps = declared.into_iter().map(|(first, length)| lost(first, first + length)).collect();
            let samples = seqs.into_iter().map(sample).collect();
            let mut numbering = Numbering::after(acked);
            let Some(range) = take(&mut numbering, samples, gaps) else { return Ok(()) };
            prop_assert_eq!(range.first_seq, acked + 1);
            let mut covered: Vec<i64> = range.samples.iter().map(|sample| sample.seq).collect();
            covered.extend(range.gaps.iter().flat_map(|gap| gap.first_seq..=gap.last_seq));
            covered.sort_unstable();
            prop_assert_eq!(covered, (range.first_seq..=range.last_seq).collect::<Vec<_>>());
            prop_assert_eq!(numbering, Numbering::after(range.last_seq));
        }
    }
}
