//! Any samples of two hours, compacted in any steps, against the oracle.

use std::mem;

use proptest::prelude::*;

use super::{
    oracle::{Figures, expected},
    *,
};
use crate::history::{
    chunk::{seqs, uptime},
    pack::{pack, unpack, unpack_one},
};

const HOUR: i64 = 3_600_000_000;

fn shapes() -> Vec<Shape> {
    let disk = |name| [("disk_used", name), ("disk_total", name)];
    let (eth0, eth1, gauge) = (("c", "eth0"), ("c", "eth1"), ("g", ""));
    vec![
        shape(&[]),
        shape(&[&disk("/")[..], &[eth0]].concat()),
        shape(&[&disk("/")[..], &disk("/b"), &[eth1, gauge, eth0]].concat()),
        shape(&[&[eth0, gauge, eth0, gauge], &disk("/a")[..]].concat()),
    ]
}

/// Small numbers, so that they are often equal, and those at the limits.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..12_i64, 2 => 0..=MOST, 1 => Just(MOST), 1 => Just(MOST - 1)]
}

/// A time of two hours: often the same moment or the end of an hour.
fn time() -> impl Strategy<Value = i64> {
    let minute = (0..120_i64).prop_map(|minute| minute * 60_000_000);
    prop_oneof![4 => minute, 2 => 0..2 * HOUR, 1 => HOUR - 1..HOUR + 1, 1 => Just(2 * HOUR - 1)]
}

prop_compose! {
    fn sample()(
        at_micros in time(),
        uptime_seconds in prop_oneof![3 => 900..1000_i64, 1 => number()],
        agent_no in 1..3_i32,
        shape in prop_oneof![0..4_usize, Just(2)],
        real in prop_oneof![0.0..100.0_f32, Just(0.0), Just(f32::MAX)],
        wholes in prop::collection::vec(number(), 6),
        process_count in prop_oneof![0..9_i32, Just(i32::MAX)],
        parts in prop::collection::vec(number(), 7),
    ) -> LooseSample {
        let shape = &shapes()[shape];
        LooseSample {
            agent_no,
            shape: shape.name,
            at_micros,
            seq: 0,
            reals: [real, real / 2.0, 1.0, real],
            memory_used_bytes: wholes[0],
            memory_total_bytes: wholes[1],
            swap_used_bytes: wholes[2],
            swap_total_bytes: wholes[3],
            uptime_seconds,
            process_count,
            network_rx_bytes: wholes[4],
            network_tx_bytes: wholes[5],
            parts: parts[..shape.parts.len()].to_vec(),
        }
    }
}

/// Numbered samples, each with the bits of the steps in which it is compacted.
fn story() -> impl Strategy<Value = Vec<(LooseSample, u8)>> {
    let samples = prop::collection::vec((sample(), 1..8_u8, 1..3_i64), 1..60);
    (samples, any::<bool>()).prop_map(|(mut samples, in_order)| {
        if in_order {
            samples.sort_by_key(|(sample, _, _)| sample.at_micros);
        }
        let mut seq = 0;
        let numbered = |(sample, steps, by): (LooseSample, u8, i64)| {
            seq += by;
            (LooseSample { seq, ..sample }, steps)
        };
        samples.into_iter().map(numbered).collect()
    })
}

/// What is read back after the chunk was stored.
fn stored(chunk: Chunk) -> Chunk {
    let samples = chunk.at.len();
    let packed = pack(&chunk.parts);
    let (first, without) = chunk.stored_seqs();
    let uptimes = chunk.stored_uptime().into_iter().zip(&chunk.at);
    let uptime_seconds = uptimes.map(|(stored, at)| uptime(stored, *at)).collect();
    let parts = unpack(&packed, samples).unwrap();
    let last: Vec<i64> = parts.iter().map(|values| values[samples - 1]).collect();
    assert_eq!(unpack_one(&packed, samples, samples - 1), Ok(last));
    Chunk {
        seq: seqs(first, without, samples),
        uptime_seconds,
        parts,
        ..chunk
    }
}

/// Compacts the samples in up to three steps. A sample that is in several of them was delivered again.
fn compacted(story: &[(LooseSample, u8)]) -> BTreeMap<ChunkKey, Chunk> {
    let mut all: BTreeMap<ChunkKey, Chunk> = BTreeMap::new();
    for step in 0..3 {
        let rows = story.iter().filter(|(_, steps)| steps >> step & 1 == 1);
        let rows = rows.map(|(row, _)| row.clone()).collect();
        for (key, chunk) in chunks(rows).unwrap() {
            let merged = match all.remove(&key) {
                Some(known) => known.merge(&chunk),
                None => chunk,
            };
            all.insert(key, stored(merged));
        }
    }
    all
}

/// The figures by name, taken out of the rollup.
fn take_figures(rollup: &mut Rollup, shapes: &[Shape]) -> Figures {
    let known = shapes.iter().find(|shape| shape.name == rollup.shape);
    let list = rollup.own_list.take().or(known.cloned()).unwrap();
    let figures = mem::take(&mut rollup.figures);
    let name = mem::take(&mut rollup.shape);
    assert_eq!((list.name, list.parts.len()), (name, figures.len()));
    let keys = list.parts.iter().map(|part| part.key());
    let keys = keys.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    let by_name: Figures = keys.zip(figures).collect();
    assert_eq!(by_name.len(), list.parts.len(), "a part twice");
    by_name
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rollups_are_exact_however_samples_are_compacted(story in story()) {
        let shapes = shapes();
        let chunks = compacted(&story);
        for (key, chunk) in &chunks {
            let shape = shapes.iter().find(|shape| shape.name == key.shape);
            prop_assert_eq!(chunk.validate(shape.unwrap().parts.len()), Ok(()));
        }
        let rows: Vec<LooseSample> = story.into_iter().map(|(row, _)| row).collect();
        let mut found = roll_up(&shapes, &chunks).map(|mut rollup| {
            let figures = take_figures(&mut rollup, &shapes);
            (rollup, figures)
        });
        let expected = expected(&shapes, &rows);
        if let (Some((found, _)), Some((expected, _))) = (&mut found, &expected) {
            for (found, expected) in found.reals.iter_mut().zip(&expected.reals) {
                let differ = (found.mean - expected.mean).abs();
                prop_assert!(differ <= expected.mean.abs() * 1e-12);
                found.mean = expected.mean;
            }
        }
        prop_assert_eq!(found, expected);
    }
}
