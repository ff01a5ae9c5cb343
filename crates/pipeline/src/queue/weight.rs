//! The memory that a range takes, by which the queue and the report budget count it.

use std::sync::Arc;

use svc_store::{DiskRow, GapRow, OptionalVitals, PartRow, Range, SampleRow};

/// Allocators round small sizes up to a multiple of this.
const GRAIN: usize = 16;
/// The counters in front of a shared text.
const SHARED: usize = 2 * size_of::<usize>();

/// How many bytes of memory a range takes.
pub fn weight(range: &Range) -> usize {
    let samples = range.samples.capacity() * size_of::<SampleRow>();
    let held =
        |sample: &SampleRow| disks(&sample.disks) + sample.optional.as_deref().map_or(0, optional);
    let held: usize = range.samples.iter().map(held).sum();
    let gaps = range.gaps.capacity() * size_of::<GapRow>();
    let reasons: usize = range.gaps.iter().map(|gap| text(gap.reason.len())).sum();
    size_of::<Range>() + samples + held + gaps + reasons
}

fn disks(disks: &Vec<DiskRow>) -> usize {
    let texts = disks.iter().map(|disk| {
        let texts = [&disk.mount_point, &disk.device, &disk.fs_type];
        texts.map(|one| text(one.len())).iter().sum::<usize>()
    });
    disks.capacity() * size_of::<DiskRow>() + texts.sum::<usize>()
}

fn optional(optional: &OptionalVitals) -> usize {
    let texts = optional.unreadable_mounts.iter();
    let texts = texts.chain([&optional.spool_problem]);
    let texts: usize = texts.map(|one| size_of::<String>() + text(one.len())).sum();
    size_of::<OptionalVitals>()
        + texts
        + optional.parts.capacity() * size_of::<PartRow>()
        + names(&optional.parts)
}

/// Parts that follow each other share their name.
fn names(parts: &[PartRow]) -> usize {
    let runs = parts.chunk_by(|one, next| Arc::ptr_eq(&one.name, &next.name));
    let names = runs.filter_map(|run| run.first());
    names.map(|part| text(SHARED + part.name.len())).sum()
}

fn text(length: usize) -> usize {
    length.next_multiple_of(GRAIN)
}
