use svc_store::{DiskRow, OptionalVitals, PartKind, PartRow};

use super::*;
use crate::export::tests::plain;

/// All that an agent may report at once, with the longest names.
fn largest() -> SampleRow {
    let name = |n: usize| format!("{n:0>255}");
    let part = |kind: PartKind, n| PartRow {
        kind,
        name: name(n).into(),
        value: i64::MAX,
    };
    let parts = PartKind::ALL.iter();
    let parts = parts.flat_map(|kind| (0..64).map(move |n| part(*kind, n)));
    let disk = |n| DiskRow {
        mount_point: name(n),
        device: name(n),
        fs_type: name(n),
        total_bytes: i64::MAX,
        used_bytes: 1,
    };
    SampleRow {
        disks: (0..64).map(disk).collect(),
        optional: Some(Box::new(OptionalVitals {
            parts: parts.collect(),
            ..OptionalVitals::default()
        })),
        ..plain()
    }
}

fn pieces(row: SampleRow, count: usize) -> Vec<Piece> {
    cut(&Resource::default(), &vec![row; count])
}

#[test]
fn a_request_stays_small_whatever_agents_report() {
    let pieces = pieces(largest(), 20);
    let samples: usize = pieces.iter().map(|piece| piece.samples).sum();
    assert_eq!(samples, 20);
    for piece in &pieces {
        assert!(piece.bytes <= REQUEST_BYTES, "{}", piece.bytes);
    }
}

#[test]
fn plain_samples_fill_a_request() {
    let pieces = pieces(plain(), REQUEST_SAMPLES + 1);
    let counts: Vec<usize> = pieces.iter().map(|piece| piece.samples).collect();
    assert_eq!(counts, [REQUEST_SAMPLES, 1]);
    let mut request = Request::default();
    for piece in pieces {
        assert_eq!(request.has_room_for(&piece), request.samples == 0);
        request.add(piece);
    }
}
