//! Vitals as metrics of OpenTelemetry's semantic conventions for systems (`system.*`), and hosts as resources. This file
//! is the whole mapping; docs/export.md shows it as a table.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use svc_store::{DiskRow, HostId, HostIdentity, SampleRow};

use super::otlp::{
    Data, Gauge, KeyValue, Metric, Number, Point, Resource, ResourceMetrics, Scope, ScopeMetrics,
    Sum,
};

const CUMULATIVE: i32 = 2;

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
        let labels = host.labels.as_object().into_iter().flatten();
        attributes.extend(labels.filter_map(|(key, value)| {
            Some(KeyValue::new(format!("svc.label.{key}"), value.as_str()?))
        }));
    }
    Resource { attributes }
}

/// All samples of one host.
pub(super) fn resource_metrics(resource: Resource, samples: &[SampleRow]) -> ResourceMetrics {
    let mut metrics = Metrics::default();
    for sample in samples {
        metrics.add(sample);
    }
    ResourceMetrics {
        resource: Some(resource),
        scope_metrics: vec![ScopeMetrics {
            scope: Some(Scope {
                name: "svc-ingest".into(),
                version: crate::VERSION.into(),
            }),
            metrics: metrics.0.into_values().collect(),
        }],
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    /// Of parts that may be added up; it may fall.
    UpDown,
    Counter,
}

type Attributes<'a> = &'a [(&'static str, &'a str)];

/// By name.
#[derive(Default)]
struct Metrics(BTreeMap<&'static str, Metric>);

impl Metrics {
    fn add(&mut self, sample: &SampleRow) {
        use {Kind::*, Number::*};
        let at = sample.sampled_at;
        let booted = at.checked_sub(SignedDuration::from_secs(sample.uptime_seconds));
        let booted = nanos(booted.unwrap_or(at));
        let mut put = |name, unit, kind, value, attributes: Attributes<'_>| {
            let start = match kind {
                Counter => booted,
                Gauge | UpDown => 0,
            };
            self.put(name, unit, kind, point(start, at, value, attributes));
        };
        let cpu = Double(sample.cpu_percent / 100.0);
        put("system.cpu.utilization", "1", Gauge, cpu, &[]);
        let [one, five, fifteen] = sample.load.map(Double);
        put("system.cpu.load_average.1m", "{thread}", Gauge, one, &[]);
        put("system.cpu.load_average.5m", "{thread}", Gauge, five, &[]);
        put(
            "system.cpu.load_average.15m",
            "{thread}",
            Gauge,
            fifteen,
            &[],
        );
        let name = "system.memory.usage";
        let (used, total) = (sample.memory_used_bytes, sample.memory_total_bytes);
        for (state, bytes) in [("used", used), ("free", total.saturating_sub(used))] {
            put(
                name,
                "By",
                UpDown,
                Int(bytes),
                &[("system.memory.state", state)],
            );
        }
        put("system.memory.limit", "By", UpDown, Int(total), &[]);
        let name = "system.paging.usage";
        let (used, total) = (sample.swap_used_bytes, sample.swap_total_bytes);
        for (state, bytes) in [("used", used), ("free", total.saturating_sub(used))] {
            put(
                name,
                "By",
                UpDown,
                Int(bytes),
                &[("system.paging.state", state)],
            );
        }
        put("system.uptime", "s", Gauge, Int(sample.uptime_seconds), &[]);
        let processes = Int(sample.process_count);
        put("system.process.count", "{process}", UpDown, processes, &[]);
        for (direction, bytes) in [
            ("receive", sample.network_rx_bytes),
            ("transmit", sample.network_tx_bytes),
        ] {
            let attributes = [("network.io.direction", direction)];
            put("system.network.io", "By", Counter, Int(bytes), &attributes);
        }
        for disk in &sample.disks {
            let DiskRow {
                mount_point,
                device,
                fs_type,
                total_bytes,
                used_bytes,
            } = disk;
            let attributes = [
                ("system.device", device.as_str()),
                ("system.filesystem.mountpoint", mount_point.as_str()),
                ("system.filesystem.type", fs_type.as_str()),
            ];
            let name = "system.filesystem.limit";
            put(name, "By", UpDown, Int(*total_bytes), &attributes);
            let free = total_bytes.saturating_sub(*used_bytes);
            for (state, bytes) in [("used", *used_bytes), ("free", free)] {
                let [device, mount_point, fs_type] = attributes;
                let state = ("system.filesystem.state", state);
                let attributes = [device, mount_point, fs_type, state];
                put(
                    "system.filesystem.usage",
                    "By",
                    UpDown,
                    Int(bytes),
                    &attributes,
                );
            }
        }
    }

    fn put(&mut self, name: &'static str, unit: &str, kind: Kind, point: Point) {
        let metric = self.0.entry(name).or_insert_with(|| Metric {
            name: name.into(),
            unit: unit.into(),
            data: Some(match kind {
                Kind::Gauge => Data::Gauge(Gauge::default()),
                Kind::UpDown | Kind::Counter => Data::Sum(Sum {
                    points: Vec::new(),
                    temporality: CUMULATIVE,
                    is_monotonic: matches!(kind, Kind::Counter),
                }),
            }),
        });
        if let Some(Data::Gauge(Gauge { points }) | Data::Sum(Sum { points, .. })) =
            &mut metric.data
        {
            points.push(point);
        }
    }
}

fn point(start: u64, at: Timestamp, value: Number, attributes: Attributes<'_>) -> Point {
    Point {
        attributes: attributes
            .iter()
            .map(|(key, value)| KeyValue::new(*key, *value))
            .collect(),
        start_time_unix_nano: start,
        time_unix_nano: nanos(at),
        value: Some(value),
    }
}

/// 0, which means unknown, for a time before 1970.
fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}
