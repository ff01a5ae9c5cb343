//! What the optional vitals add to a sample on the wire.

use prost::Message;
use svc_agent::vitals::Sampler;
use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure, Report, Sample, Vitals};

/// A machine with two file systems, a network card and a disk that was up for a month.
fn typical() -> Vitals {
    let disk = |mount_point: &str, device: &str| Disk {
        mount_point: mount_point.into(),
        device: device.into(),
        fs_type: "ext4".into(),
        total_bytes: 500 << 30,
        used_bytes: 120 << 30,
        available_bytes: Some(355 << 30),
        inodes_used: Some(1_234_567),
        inodes_free: Some(31_000_000),
        read_only: Some(false),
    };
    Vitals {
        cpu_percent: 12.5,
        load_1m: 0.42,
        load_5m: 0.37,
        load_15m: 0.3,
        memory_used_bytes: 3 << 30,
        memory_total_bytes: 8 << 30,
        swap_used_bytes: 1 << 20,
        swap_total_bytes: 2 << 30,
        uptime_seconds: 2_592_000,
        process_count: 312,
        network_rx_bytes: 98_765_432_109,
        network_tx_bytes: 12_345_678_901,
        disks: vec![disk("/", "/dev/nvme0n1p2"), disk("/home", "/dev/nvme0n1p3")],
        interfaces: vec![Interface {
            name: "eth0".into(),
            rx_bytes: 98_765_432_109,
            tx_bytes: 12_345_678_901,
        }],
        block_devices: vec![BlockDevice {
            name: "nvme0n1".into(),
            reads: 12_345_678,
            read_bytes: 345_678_901_234,
            writes: 45_678_901,
            written_bytes: 987_654_321_098,
            busy_ms: 21_098_765,
        }],
        pressure: Some(Pressure {
            cpu_some_ms: Some(9_876_543),
            memory_some_ms: Some(12_345),
            memory_full_ms: Some(10_123),
            io_some_ms: Some(3_456_789),
            io_full_ms: Some(2_345_678),
        }),
        cpu_steal_ms: Some(1_234_560),
        ..Vitals::default()
    }
}

/// This sample as an agent without the optional vitals reports it.
fn without(vitals: &Vitals) -> Vitals {
    let mut vitals = Vitals {
        interfaces: vec![],
        block_devices: vec![],
        pressure: None,
        cpu_steal_ms: None,
        ..vitals.clone()
    };
    for disk in &mut vitals.disks {
        (disk.available_bytes, disk.read_only) = (None, None);
        (disk.inodes_used, disk.inodes_free) = (None, None);
    }
    vitals
}

/// The bytes of a report with one such sample.
fn size(vitals: Vitals) -> usize {
    let sampled_at = Some(prost_types::Timestamp {
        seconds: 1_800_000_000,
        nanos: 123_456_789,
    });
    let sample = Sample {
        seq: 86_400,
        sampled_at,
        vitals: Some(vitals),
    };
    let samples = vec![sample];
    Report {
        samples,
        gaps: vec![],
        update: None,
        ..Report::default()
    }
    .encoded_len()
}

#[test]
fn the_optional_vitals_do_not_double_a_sample() {
    let sizes = |vitals: Vitals| (size(without(&vitals)), size(vitals));
    let here = sizes(Sampler::default().sample());
    println!("bytes of a report on this machine, before and after: {here:?}");
    let (before, after) = sizes(typical());
    println!("bytes of a report of a typical machine: {before}, {after}");
    assert!(after < before * 2, "{after} bytes instead of {before}");
}
