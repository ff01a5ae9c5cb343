//! Samples as the arguments of `samples_append` and `samples_store`: one array for each column.

use std::collections::HashMap;

use super::{
    DiskRow, SampleRow,
    scalars::{SCALARS, Scalar},
};
use crate::prelude::*;

/// The samples of one range, with the shape of each.
pub(super) struct RangeSamples<'a> {
    pub(super) host_id: HostId,
    pub(super) samples: Vec<(&'a SampleRow, Uuid)>,
}

impl<'a> RangeSamples<'a> {
    pub(super) fn new(
        host_id: HostId,
        samples: impl Iterator<Item = &'a SampleRow>,
    ) -> RangeSamples<'a> {
        let samples = samples.map(|sample| (sample, sample.shape())).collect();
        RangeSamples { host_id, samples }
    }

    /// The shape of the newest numbers.
    pub(super) fn last_shape(&self) -> Option<Uuid> {
        self.samples.last().map(|(_, shape)| *shape)
    }
}

/// The newest sample of a host: its entry, its place among all samples, and its time.
#[derive(Clone, Copy)]
struct Newest {
    entry: usize,
    place: i32,
    at: Timestamp,
}

/// Adds the arguments from `newest` on.
pub(super) fn with_samples<'a>(columns: Arrays<'a>, entries: &[&RangeSamples<'a>]) -> Arrays<'a> {
    let mut owners: Vec<i32> = Vec::new();
    let (mut samples, mut shapes) = (Vec::new(), Vec::new());
    for (owner, entry) in (1..).zip(entries) {
        for (sample, shape) in &entry.samples {
            owners.push(owner);
            samples.push(*sample);
            shapes.push(*shape);
        }
    }
    let (values, starts) = part_values(&samples);
    let columns = with_newest(columns, entries, &samples)
        .column(&owners, |owner| *owner)
        .column(&samples, |s| s.sampled_at)
        .column(&samples, |s| s.seq)
        .column(&shapes, |shape| *shape)
        .column(&values, |value| *value)
        .column(&starts, |start| *start);
    let scalar = |columns, scalar: &Scalar| scalar.column(columns, &samples);
    SCALARS.iter().fold(columns, scalar)
}

/// The values of the parts of all samples, and the place where those of each one start. One more place
/// tells where the last ones end.
fn part_values(samples: &[&SampleRow]) -> (Vec<i64>, Vec<i32>) {
    let (mut values, mut starts) = (Vec::new(), vec![1]);
    for sample in samples {
        values.extend(sample.part_values());
        starts.push(
            i32::try_from(values.len())
                .unwrap_or(i32::MAX)
                .saturating_add(1),
        );
    }
    (values, starts)
}

/// For each entry the place of the newest sample of its host, and what only the latest vitals have.
fn with_newest<'a>(
    columns: Arrays<'a>,
    entries: &[&RangeSamples<'a>],
    samples: &[&'a SampleRow],
) -> Arrays<'a> {
    let mut newest: Vec<Option<i32>> = vec![None; entries.len()];
    for found in newest_of_hosts(entries).into_values() {
        newest[found.entry] = Some(found.place);
    }
    let sample = |place: &Option<i32>| {
        let place = usize::try_from((*place)?).ok()?;
        samples.get(place.checked_sub(1)?).copied()
    };
    let optional = |place: &Option<i32>| sample(place)?.optional.as_deref();
    columns
        .column(&newest, |place| *place)
        .column(&newest, |place| {
            let (percent, _) = fullest(&sample(place)?.disks)?;
            Some(percent.floor() as i16)
        })
        .column(&newest, |place| {
            let (_, disk) = fullest(&sample(place)?.disks)?;
            Some(disk.mount_point.as_str())
        })
        .column(&newest, |place| {
            let problem = optional(place)?.spool_problem.as_str();
            (!problem.is_empty()).then_some(problem)
        })
        .column(&newest, |place| {
            let mounts = &optional(place)?.unreadable_mounts;
            (!mounts.is_empty()).then_some(Json(mounts))
        })
}

/// The newest sample of each host. Of several with the same time the last one wins.
fn newest_of_hosts(entries: &[&RangeSamples<'_>]) -> HashMap<HostId, Newest> {
    let mut hosts: HashMap<HostId, Newest> = HashMap::new();
    let mut place = 0;
    for (entry, of) in entries.iter().enumerate() {
        for (sample, _) in &of.samples {
            place += 1;
            let at = sample.sampled_at;
            let found = Newest { entry, place, at };
            let known = hosts.entry(of.host_id).or_insert(found);
            if at >= known.at {
                *known = found;
            }
        }
    }
    hosts
}

/// The disk with the highest usage in percent. Of equals, the first by mount point.
fn fullest(disks: &[DiskRow]) -> Option<(f64, &DiskRow)> {
    let share = |disk: &DiskRow| 100.0 * disk.used_bytes as f64 / disk.total_bytes as f64;
    let sized = disks.iter().filter(|disk| disk.total_bytes > 0);
    let shares = sized.map(|disk| (share(disk).min(100.0), disk));
    shares.max_by(|(one, a), (other, b)| {
        let by_name = || b.mount_point.cmp(&a.mount_point);
        one.total_cmp(other).then_with(by_name)
    })
}
