//! Metrics of OTLP, filled point by point.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use svc_store::SampleRow;

use super::otlp::{Data, Gauge, KeyValue, Metric, Number, Point, Sum};

const CUMULATIVE: i32 = 2;

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Gauge,
    /// A value that may fall, and whose parts may be added up.
    UpDown,
    /// Counts up since the boot.
    Counter,
}

/// A metric of the conventions: its name, its unit, and its kind.
#[derive(Clone, Copy)]
pub(super) struct Metered(pub &'static str, pub &'static str, pub Kind);

pub(super) type Attribute<'a> = (&'static str, &'a str);

/// By name.
#[derive(Default)]
pub(super) struct Metrics(BTreeMap<&'static str, Metric>);

/// Adds the points of one sample.
pub(super) struct Points<'a> {
    metrics: &'a mut Metrics,
    sampled_at: u64,
    booted_at: u64,
}

impl Metrics {
    pub(super) fn points_of(&mut self, sample: &SampleRow) -> Points<'_> {
        let at = sample.sampled_at;
        let booted = at.checked_sub(SignedDuration::from_secs(sample.uptime_seconds));
        Points {
            metrics: self,
            sampled_at: nanos(at),
            booted_at: nanos(booted.unwrap_or(at)),
        }
    }

    pub(super) fn into_list(self) -> Vec<Metric> {
        self.0.into_values().collect()
    }

    fn entry(&mut self, Metered(name, unit, kind): Metered) -> &mut Metric {
        self.0.entry(name).or_insert_with(|| Metric {
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
        })
    }
}

impl Points<'_> {
    pub(super) fn put(&mut self, metric: Metered, value: Number, attributes: &[Attribute<'_>]) {
        let point = Point {
            attributes: attributes
                .iter()
                .map(|(key, value)| KeyValue::new(*key, *value))
                .collect(),
            start_time_unix_nano: match metric.2 {
                Kind::Counter => self.booted_at,
                Kind::Gauge | Kind::UpDown => 0,
            },
            time_unix_nano: self.sampled_at,
            value: Some(value),
        };
        let data = &mut self.metrics.entry(metric).data;
        if let Some(Data::Gauge(Gauge { points }) | Data::Sum(Sum { points, .. })) = data {
            points.push(point);
        }
    }

    /// One point for each value of the attribute `key`.
    pub(super) fn put_each(
        &mut self,
        metric: Metered,
        key: &'static str,
        values: &[(&str, i64)],
        attributes: &[Attribute<'_>],
    ) {
        for (state, value) in values {
            let attributes = [attributes, &[(key, *state)]].concat();
            self.put(metric, Number::Int(*value), &attributes);
        }
    }
}

/// 0, which means unknown, for a time before 1970.
fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}
