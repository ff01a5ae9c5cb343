//! Dating the samples of a report. A sample that cannot be dated becomes a gap.

use std::time::SystemTime;

use svc_proto::{
    contract::limits::MAX_GAPS,
    v1::{Gap, Report, Sample},
};

use crate::{
    clock::Anchor,
    spool::LossReason,
    stamp::{Boot, Stamp, nanos},
};

pub(super) fn dated(mut report: Report, boot: Boot, anchor: Anchor) -> Report {
    let mut undated = Vec::new();
    report.samples.retain_mut(|sample| {
        let time = stamp(sample).and_then(|stamp| stamp.dated(boot, anchor));
        sample.sampled_at = time.map(Into::into);
        if time.is_none() {
            undated.push(sample.seq);
        }
        time.is_some()
    });
    match undated.is_empty() {
        true => report,
        false => with_gaps(report, &undated),
    }
}

fn stamp(sample: &Sample) -> Option<Stamp> {
    let at = SystemTime::try_from(sample.sampled_at?).ok()?;
    Some(Stamp::from_raw(nanos(at)))
}

/// Adds a gap for each of these numbers. A report that would have too many gaps ends
/// earlier; the rest follows in the next one.
fn with_gaps(mut report: Report, undated: &[u64]) -> Report {
    let reason = LossReason::Undated.text();
    for seq in undated {
        match report.gaps.last_mut() {
            Some(gap) if gap.reason == reason && gap.last_seq + 1 == *seq => gap.last_seq = *seq,
            _ => report.gaps.push(Gap {
                first_seq: *seq,
                last_seq: *seq,
                reason: reason.into(),
            }),
        }
    }
    report.gaps.sort_unstable_by_key(|gap| gap.first_seq);
    if let Some(first_left_out) = report.gaps.get(MAX_GAPS).map(|gap| gap.first_seq) {
        report.gaps.truncate(MAX_GAPS);
        report.samples.retain(|sample| sample.seq < first_left_out);
    }
    report
}
