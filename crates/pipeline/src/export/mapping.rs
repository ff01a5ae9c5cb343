//! Vitals as metrics of OpenTelemetry's semantic conventions for systems (`system.*`), and hosts as resources. This file
//! is the whole mapping; docs/export.md shows it as a table.

use svc_store::{DiskRow, HostId, HostIdentity, PartKind, PartRow, SampleRow};

use super::{
    otlp::{
        KeyValue,
        Number::{Double, Int},
        Resource, ResourceMetrics, Scope, ScopeMetrics,
    },
    points::{
        Attribute,
        Kind::{Counter, Gauge, UpDown},
        Metered, Metrics, Points,
    },
};

const CPU: Metered = Metered("system.cpu.utilization", "1", Gauge);
const CPU_TIME: Metered = Metered("system.cpu.time", "s", Counter);
const LOADS: [Metered; 3] = [
    Metered("system.cpu.load_average.1m", "{thread}", Gauge),
    Metered("system.cpu.load_average.5m", "{thread}", Gauge),
    Metered("system.cpu.load_average.15m", "{thread}", Gauge),
];
const CPU_PRESSURE: Metered = Metered("system.cpu.linux.pressure.total", "s", Counter);
const MEMORY: Metered = Metered("system.memory.usage", "By", UpDown);
const MEMORY_LIMIT: Metered = Metered("system.memory.limit", "By", UpDown);
const MEMORY_PRESSURE: Metered = Metered("system.memory.linux.pressure.total", "s", Counter);
const IO_PRESSURE: Metered = Metered("system.io.linux.pressure.total", "s", Counter);
const PAGING: Metered = Metered("system.paging.usage", "By", UpDown);
const UPTIME: Metered = Metered("system.uptime", "s", Gauge);
const PROCESSES: Metered = Metered("system.process.count", "{process}", UpDown);
const NETWORK: Metered = Metered("system.network.io", "By", Counter);
const FILE_SYSTEM: Metered = Metered("system.filesystem.usage", "By", UpDown);
const FILE_SYSTEM_LIMIT: Metered = Metered("system.filesystem.limit", "By", UpDown);
const INODES: Metered = Metered("system.filesystem.inodes.usage", "{inodes}", UpDown);
const DISK: Metered = Metered("system.disk.io", "By", Counter);
const DISK_OPERATIONS: Metered = Metered("system.disk.operations", "{operation}", Counter);
const DISK_TIME: Metered = Metered("system.disk.io_time", "s", Counter);

const DEVICE: &str = "system.device";
const INTERFACE: &str = "network.interface.name";
const NETWORK_DIRECTION: &str = "network.io.direction";
const FILE_SYSTEM_STATE: &str = "system.filesystem.state";
const READ: Attribute<'_> = ("disk.io.direction", "read");
const WRITE: Attribute<'_> = ("disk.io.direction", "write");
const SOME: Attribute<'_> = ("system.linux.pressure.stall_type", "some");
const FULL: Attribute<'_> = ("system.linux.pressure.stall_type", "full");

/// The resource of a host. Of a host that could not be looked up only the id is known.
pub(super) fn resource(id: HostId, host: Option<&HostIdentity>) -> Resource {
    let mut attributes = vec![KeyValue::new("host.id", id.to_string())];
    if let Some(host) = host {
        attributes.extend([
            KeyValue::new("host.name", &*host.hostname),
            KeyValue::new("host.arch", &*host.arch),
            KeyValue::new("os.name", &*host.os),
            KeyValue::new("os.version", &*host.os_version),
        ]);
        let labels = host.labels.iter();
        attributes
            .extend(labels.map(|(key, value)| KeyValue::new(format!("svc.label.{key}"), value)));
    }
    Resource { attributes }
}

/// All samples of one host.
pub(super) fn resource_metrics(resource: Resource, samples: &[SampleRow]) -> ResourceMetrics {
    let mut metrics = Metrics::default();
    for sample in samples {
        add(metrics.points_of(sample), sample);
    }
    ResourceMetrics {
        resource: Some(resource),
        scope_metrics: vec![ScopeMetrics {
            scope: Some(Scope {
                name: "svc-ingest".into(),
                version: svc_common::VERSION.into(),
            }),
            metrics: metrics.into_list(),
        }],
    }
}

fn add(mut points: Points<'_>, sample: &SampleRow) {
    let parts = sample.optional.as_ref().map_or(&[][..], |all| &all.parts);
    points.put(CPU, Double(sample.cpu_percent / 100.0), &[]);
    for (metric, load) in LOADS.into_iter().zip(sample.load) {
        points.put(metric, Double(load), &[]);
    }
    let (used, total) = (sample.memory_used_bytes, sample.memory_total_bytes);
    let states = used_and_free(used, total);
    points.put_each(MEMORY, "system.memory.state", &states, &[]);
    points.put(MEMORY_LIMIT, Int(total), &[]);
    let states = used_and_free(sample.swap_used_bytes, sample.swap_total_bytes);
    points.put_each(PAGING, "system.paging.state", &states, &[]);
    points.put(UPTIME, Int(sample.uptime_seconds), &[]);
    points.put(PROCESSES, Int(sample.process_count), &[]);
    // The totals add up the interfaces: beside them they would count everything twice.
    if !parts.iter().any(|part| part.kind == PartKind::InterfaceRx) {
        let (received, sent) = (sample.network_rx_bytes, sample.network_tx_bytes);
        let directions = [("receive", received), ("transmit", sent)];
        points.put_each(NETWORK, NETWORK_DIRECTION, &directions, &[]);
    }
    for disk in &sample.disks {
        add_disk(&mut points, disk, parts);
    }
    for part in parts {
        add_part(&mut points, part);
    }
}

fn used_and_free(used: i64, total: i64) -> [(&'static str, i64); 2] {
    [("used", used), ("free", total.saturating_sub(used))]
}

/// A file system, with those of the parts that are about it.
fn add_disk(points: &mut Points<'_>, disk: &DiskRow, parts: &[PartRow]) {
    let part = |kind| {
        let mut parts = parts.iter();
        let part = parts.find(|part| part.kind == kind && *part.name == disk.mount_point);
        part.map(|part| part.value)
    };
    let (used, total) = (disk.used_bytes, disk.total_bytes);
    let mut attributes = vec![
        (DEVICE, disk.device.as_str()),
        ("system.filesystem.mountpoint", disk.mount_point.as_str()),
        ("system.filesystem.type", disk.fs_type.as_str()),
    ];
    if let Some(read_only) = part(PartKind::DiskReadOnly) {
        let mode = if read_only == 0 { "rw" } else { "ro" };
        attributes.push(("system.filesystem.mode", mode));
    }
    points.put(FILE_SYSTEM_LIMIT, Int(total), &attributes);
    match part(PartKind::DiskAvailable) {
        Some(free) => {
            let reserved = total.saturating_sub(used).saturating_sub(free).max(0);
            let states = [("used", used), ("free", free), ("reserved", reserved)];
            points.put_each(FILE_SYSTEM, FILE_SYSTEM_STATE, &states, &attributes);
        }
        None => {
            let states = used_and_free(used, total);
            points.put_each(FILE_SYSTEM, FILE_SYSTEM_STATE, &states, &attributes);
        }
    }
    let inodes = [
        ("used", PartKind::DiskInodesUsed),
        ("free", PartKind::DiskInodesFree),
    ];
    for (state, kind) in inodes {
        if let Some(inodes) = part(kind) {
            points.put_each(INODES, FILE_SYSTEM_STATE, &[(state, inodes)], &attributes);
        }
    }
}

/// Adds a part that is not about a file system.
fn add_part(points: &mut Points<'_>, part: &PartRow) {
    let count = Int(part.value);
    let seconds = Double(part.value as f64 / 1000.0);
    let interface = (INTERFACE, &*part.name);
    let device = (DEVICE, &*part.name);
    let mut put = |metric, value, attributes: &[_]| points.put(metric, value, attributes);
    match part.kind {
        PartKind::InterfaceRx => put(NETWORK, count, &[interface, (NETWORK_DIRECTION, "receive")]),
        PartKind::InterfaceTx => put(
            NETWORK,
            count,
            &[interface, (NETWORK_DIRECTION, "transmit")],
        ),
        PartKind::DeviceReads => put(DISK_OPERATIONS, count, &[device, READ]),
        PartKind::DeviceWrites => put(DISK_OPERATIONS, count, &[device, WRITE]),
        PartKind::DeviceReadBytes => put(DISK, count, &[device, READ]),
        PartKind::DeviceWrittenBytes => put(DISK, count, &[device, WRITE]),
        PartKind::DeviceBusy => put(DISK_TIME, seconds, &[device]),
        PartKind::PressureCpuSome => put(CPU_PRESSURE, seconds, &[SOME]),
        PartKind::PressureMemorySome => put(MEMORY_PRESSURE, seconds, &[SOME]),
        PartKind::PressureMemoryFull => put(MEMORY_PRESSURE, seconds, &[FULL]),
        PartKind::PressureIoSome => put(IO_PRESSURE, seconds, &[SOME]),
        PartKind::PressureIoFull => put(IO_PRESSURE, seconds, &[FULL]),
        PartKind::CpuSteal => put(CPU_TIME, seconds, &[("cpu.mode", "steal")]),
        PartKind::DiskUsed
        | PartKind::DiskTotal
        | PartKind::DiskAvailable
        | PartKind::DiskInodesUsed
        | PartKind::DiskInodesFree
        | PartKind::DiskReadOnly => {}
    }
}
