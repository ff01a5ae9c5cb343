//! From a report on the wire to entries with sequence numbers: conversion and bounds.
//!
//! A sample that breaks a rule becomes a rejected entry; the rest of the report is taken. A report that
//! breaks the protocol as a whole ends the stream.

mod optional;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use svc_proto::{
    contract::limits::{
        MAX_CLOCK_AHEAD, MAX_DISKS, MAX_GAPS, MAX_NUMBER, MAX_SAMPLES, MAX_SEQ, MAX_TEXT_BYTES,
    },
    v1,
};
use svc_store::{DiskRow, SampleRow};

use crate::session::Entry;

/// The clock and the retention by which the times of samples are judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The database's clock.
    pub now: Timestamp,
    pub retention: Duration,
}

/// A report that no single sample can be blamed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("a report carries at most {MAX_SAMPLES} samples and {MAX_GAPS} gaps")]
    TooMany,
    #[error("sequence numbers start at 1 and fit a signed 64-bit number")]
    Number,
    #[error("a gap ends before it begins")]
    Backwards,
    #[error("a gap's reason is longer than {MAX_TEXT_BYTES} bytes or holds a control character")]
    Reason,
}

/// The entries of a report. Gaps come before samples, as [`Numbering`](crate::session::Numbering) expects.
pub fn entries(report: v1::Report, rules: &Rules) -> Result<Vec<Entry>, Violation> {
    if report.samples.len() > MAX_SAMPLES || report.gaps.len() > MAX_GAPS {
        return Err(Violation::TooMany);
    }
    let mut entries = Vec::with_capacity(report.samples.len() + report.gaps.len());
    for gap in report.gaps {
        entries.push(lost(gap)?);
    }
    for sample in report.samples {
        let seq = number(sample.seq)?;
        entries.push(match row(seq, sample, rules) {
            Ok(sample) => Entry::Sample(Box::new(sample)),
            Err(reason) => Entry::Rejected { seq, reason },
        });
    }
    Ok(entries)
}

fn lost(gap: v1::Gap) -> Result<Entry, Violation> {
    let (first, last) = (number(gap.first_seq)?, number(gap.last_seq)?);
    if last < first {
        return Err(Violation::Backwards);
    }
    if !is_text(&gap.reason) {
        return Err(Violation::Reason);
    }
    let reason = gap.reason;
    Ok(Entry::Lost {
        first,
        last,
        reason,
    })
}

fn number(seq: u64) -> Result<i64, Violation> {
    if !(1..=MAX_SEQ).contains(&seq) {
        return Err(Violation::Number);
    }
    i64::try_from(seq).map_err(|_| Violation::Number)
}

/// The sample as it is stored, or the rule that it breaks.
fn row(seq: i64, sample: v1::Sample, rules: &Rules) -> Result<SampleRow, &'static str> {
    let vitals = sample.vitals.ok_or("vitals are missing")?;
    let row = SampleRow {
        seq,
        sampled_at: time(sample.sampled_at, rules)?,
        cpu_percent: vitals.cpu_percent,
        load: [vitals.load_1m, vitals.load_5m, vitals.load_15m],
        memory_used_bytes: bounded(vitals.memory_used_bytes)?,
        memory_total_bytes: bounded(vitals.memory_total_bytes)?,
        swap_used_bytes: bounded(vitals.swap_used_bytes)?,
        swap_total_bytes: bounded(vitals.swap_total_bytes)?,
        uptime_seconds: bounded(vitals.uptime_seconds)?,
        process_count: i64::from(vitals.process_count),
        network_rx_bytes: bounded(vitals.network_rx_bytes)?,
        network_tx_bytes: bounded(vitals.network_tx_bytes)?,
        optional: optional::row(&vitals)?,
        disks: disks(vitals.disks)?,
    };
    match row.broken_rule() {
        Some(rule) => Err(rule),
        None => Ok(row),
    }
}

fn time(
    sampled_at: Option<prost_types::Timestamp>,
    rules: &Rules,
) -> Result<Timestamp, &'static str> {
    let given = sampled_at.ok_or("sampled_at is missing")?;
    let at = Timestamp::new(given.seconds, given.nanos).map_err(|_| "sampled_at is not a time")?;
    let ahead = at.duration_since(rules.now);
    if ahead > SignedDuration::try_from(MAX_CLOCK_AHEAD).unwrap_or_default() {
        return Err("sampled_at is more than 5 minutes ahead of the database's clock");
    }
    if -ahead > SignedDuration::try_from(rules.retention).unwrap_or(SignedDuration::MAX) {
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
        total_bytes: bounded(disk.total_bytes)?,
        used_bytes: bounded(disk.used_bytes)?,
    })
}

/// The message names [`MAX_NUMBER`].
const TOO_LARGE: &str = "a number is above 2^62";

fn bounded(number: u64) -> Result<i64, &'static str> {
    match number <= MAX_NUMBER {
        true => Ok(number.cast_signed()),
        false => Err(TOO_LARGE),
    }
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn rules() -> Rules {
        Rules {
            now: Timestamp::from_second(NOW).unwrap(),
            retention: Duration::from_hours(24 * 7),
        }
    }

    fn at(seconds: i64, nanos: i32) -> v1::Sample {
        v1::Sample {
            sampled_at: Some(prost_types::Timestamp { seconds, nanos }),
            ..sample(2)
        }
    }

    fn sample(seq: u64) -> v1::Sample {
        v1::Sample {
            seq,
            sampled_at: Some(prost_types::Timestamp {
                seconds: NOW,
                nanos: 0,
            }),
            vitals: Some(v1::Vitals {
                cpu_percent: 50.0,
                ..Default::default()
            }),
        }
    }

    fn with_vitals(change: fn(&mut v1::Vitals)) -> v1::Sample {
        let mut changed = sample(2);
        changed.vitals.iter_mut().for_each(change);
        changed
    }

    #[test]
    fn a_sample_that_breaks_a_rule_is_rejected_by_itself() {
        let nul = |vitals: &mut v1::Vitals| {
            vitals.disks = vec![v1::Disk {
                mount_point: "/\0".into(),
                ..Default::default()
            }];
        };
        for broken in [
            with_vitals(|v| v.cpu_percent = f64::NAN),
            with_vitals(|v| v.cpu_percent = 100.1),
            with_vitals(|v| v.cpu_percent = -0.1),
            with_vitals(|v| v.load_5m = f64::INFINITY),
            with_vitals(|v| v.load_1m = -1.0),
            with_vitals(|v| v.disks = vec![v1::Disk::default(); 65]),
            with_vitals(nul),
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
            let samples = vec![sample(1), broken, sample(3)];
            let report = v1::Report {
                samples,
                gaps: vec![],
                update: None,
                ..v1::Report::default()
            };
            let entries = entries(report, &rules()).unwrap();
            let expected = matches!(
                entries[..],
                [
                    Entry::Sample(_),
                    Entry::Rejected { seq: 2, .. },
                    Entry::Sample(_)
                ]
            );
            assert!(expected, "{shown}: {entries:?}");
        }
    }

    #[test]
    fn every_number_is_accepted_up_to_its_limit_and_rejected_above() {
        let numbers: [fn(&mut v1::Vitals) -> &mut u64; 9] = [
            |v| &mut v.memory_used_bytes,
            |v| &mut v.memory_total_bytes,
            |v| &mut v.swap_used_bytes,
            |v| &mut v.swap_total_bytes,
            |v| &mut v.uptime_seconds,
            |v| &mut v.network_rx_bytes,
            |v| &mut v.network_tx_bytes,
            |v| &mut v.disks[0].total_bytes,
            |v| &mut v.disks[0].used_bytes,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            let judged = |value| {
                let mut sample = sample(2);
                let vitals = sample.vitals.get_or_insert_default();
                vitals.disks = vec![v1::Disk::default()];
                *number(vitals) = value;
                row(2, sample, &rules()).map(drop)
            };
            for allowed in [0, MAX_NUMBER - 1, MAX_NUMBER] {
                assert_eq!(judged(allowed), Ok(()), "number {index}");
            }
            for beyond in [MAX_NUMBER + 1, 1 << 63, u64::MAX] {
                assert_eq!(judged(beyond), Err(TOO_LARGE), "number {index}");
            }
        }
        assert_eq!(MAX_NUMBER, 1 << 62, "as the message says");
    }

    #[test]
    fn measurements_are_accepted_at_their_limits() {
        let limits: [fn(&mut v1::Vitals); 8] = [
            |v| v.cpu_percent = 0.0,
            |v| v.cpu_percent = 100.0,
            |v| v.load_1m = f64::MAX,
            |v| v.load_5m = f64::MIN_POSITIVE,
            |v| v.load_15m = f64::MAX,
            |v| v.process_count = u32::MAX,
            |v| v.disks = vec![v1::Disk::default(); MAX_DISKS],
            |v| v.disks[0].mount_point = "x".repeat(MAX_TEXT_BYTES),
        ];
        for (index, limit) in limits.into_iter().enumerate() {
            let mut sample = sample(2);
            let vitals = sample.vitals.get_or_insert_default();
            vitals.disks = vec![v1::Disk::default()];
            limit(vitals);
            let judged = row(2, sample, &rules());
            assert!(judged.is_ok(), "limit {index}: {judged:?}");
        }
    }

    #[test]
    fn a_report_that_cannot_be_recorded_breaks_the_protocol() {
        let judged = |samples, gaps| {
            entries(
                v1::Report {
                    samples,
                    gaps,
                    update: None,
                    ..v1::Report::default()
                },
                &rules(),
            )
            .map(|all| all.len())
        };
        let gap = |first_seq, last_seq, reason: &str| v1::Gap {
            first_seq,
            last_seq,
            reason: reason.into(),
        };
        for seq in [0, u64::MAX, i64::MAX as u64] {
            assert_eq!(judged(vec![sample(seq)], vec![]), Err(Violation::Number));
        }
        assert_eq!(judged(vec![sample(i64::MAX as u64 - 1)], vec![]), Ok(1));
        let backwards = judged(vec![], vec![gap(4, 3, "disk full")]);
        assert_eq!(backwards, Err(Violation::Backwards));
        let too_many = judged(vec![sample(1); 501], vec![]);
        assert_eq!(too_many, Err(Violation::TooMany));
        let long_reason = judged(vec![], vec![gap(1, 2, &"x".repeat(256))]);
        assert_eq!(long_reason, Err(Violation::Reason));
    }
}
