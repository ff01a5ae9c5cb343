use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure, Vitals};
use svc_store::DiskRow;

use super::*;
use crate::vitals;

/// All that an agent may report at once, with the longest names.
fn largest() -> SampleRow {
    let name = |n: usize| format!("{n:0>255}");
    let disk = |n| Disk {
        mount_point: name(n),
        available_bytes: Some(1),
        inodes_used: Some(1),
        inodes_free: Some(1),
        read_only: Some(true),
        ..Disk::default()
    };
    let interface = |n| Interface {
        name: name(n),
        ..Interface::default()
    };
    let device = |n| BlockDevice {
        name: name(n),
        ..BlockDevice::default()
    };
    let reported = Vitals {
        disks: (0..64).map(disk).collect(),
        interfaces: (0..64).map(interface).collect(),
        block_devices: (0..64).map(device).collect(),
        pressure: Some(Pressure {
            io_full_ms: Some(1),
            ..Pressure::default()
        }),
        ..Vitals::default()
    };
    let disk = |n| DiskRow {
        mount_point: name(n),
        device: name(n),
        fs_type: name(n),
        total_bytes: i64::MAX,
        used_bytes: 1,
    };
    SampleRow {
        disks: (0..64).map(disk).collect(),
        optional: vitals::optional(&reported).expect("small numbers"),
        ..plain()
    }
}

fn plain() -> SampleRow {
    SampleRow {
        seq: 1,
        sampled_at: jiff::Timestamp::UNIX_EPOCH,
        cpu_percent: 0.0,
        load: [0.0; 3],
        memory_used_bytes: 0,
        memory_total_bytes: 0,
        swap_used_bytes: 0,
        swap_total_bytes: 0,
        uptime_seconds: 0,
        process_count: 0,
        network_rx_bytes: 0,
        network_tx_bytes: 0,
        disks: Vec::new(),
        optional: None,
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
