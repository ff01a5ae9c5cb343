//! The memory that a range takes, by which the queue and the report budget count it.

use svc_store::{DiskRow, GapRow, Range, SampleRow};

/// Allocators round small sizes up to a multiple of this.
const GRAIN: usize = 16;

/// How many bytes of memory a range takes.
pub fn weight(range: &Range) -> usize {
    let samples = range.samples.capacity() * size_of::<SampleRow>();
    let disks: usize = range
        .samples
        .iter()
        .map(|sample| disks(&sample.disks))
        .sum();
    let gaps = range.gaps.capacity() * size_of::<GapRow>();
    let reasons: usize = range.gaps.iter().map(|gap| text(gap.reason.len())).sum();
    size_of::<Range>() + samples + disks + gaps + reasons
}

fn disks(disks: &Vec<DiskRow>) -> usize {
    let texts = disks.iter().map(|disk| {
        let texts = [&disk.mount_point, &disk.device, &disk.fs_type];
        texts.map(|one| text(one.len())).iter().sum::<usize>()
    });
    disks.capacity() * size_of::<DiskRow>() + texts.sum::<usize>()
}

fn text(length: usize) -> usize {
    length.next_multiple_of(GRAIN)
}
