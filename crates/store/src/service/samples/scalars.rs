//! The vitals that every sample has, declared once: a column each.
//!
//! From the declaration follow the arguments of `samples_append` and `samples_store`, the types and the
//! bounds. A test compares it with the columns of the tables. Everything else is a part (`values/vitals.rs`).

use super::SampleRow;
use crate::prelude::*;

/// A vital that every sample has.
pub(crate) struct Scalar {
    pub(crate) name: &'static str,
    value: Value,
}

/// How a scalar is stored, and where it is in a sample.
enum Value {
    /// `real`: a measurement has no more precision. Numbers beyond its range are stored as its largest.
    Real {
        of: fn(&SampleRow) -> f64,
        most: f64,
        rule: &'static str,
    },
    /// `integer`. Larger numbers are stored as its largest.
    Integer(fn(&SampleRow) -> i64),
    /// `bigint`.
    Big(fn(&SampleRow) -> i64),
}

const LOAD: &str = "a load is not a number of 0 or more";

pub(crate) const SCALARS: [Scalar; 12] = [
    Scalar {
        name: "cpu_percent",
        value: Value::Real {
            of: |sample| sample.cpu_percent,
            most: 100.0,
            rule: "cpu_percent is not between 0 and 100",
        },
    },
    load("load_1m", |sample| sample.load[0]),
    load("load_5m", |sample| sample.load[1]),
    load("load_15m", |sample| sample.load[2]),
    big("memory_used_bytes", |sample| sample.memory_used_bytes),
    big("memory_total_bytes", |sample| sample.memory_total_bytes),
    big("swap_used_bytes", |sample| sample.swap_used_bytes),
    big("swap_total_bytes", |sample| sample.swap_total_bytes),
    big("uptime_seconds", |sample| sample.uptime_seconds),
    Scalar {
        name: "process_count",
        value: Value::Integer(|sample| sample.process_count),
    },
    big("network_rx_bytes", |sample| sample.network_rx_bytes),
    big("network_tx_bytes", |sample| sample.network_tx_bytes),
];

const fn load(name: &'static str, of: fn(&SampleRow) -> f64) -> Scalar {
    let (most, rule) = (f64::MAX, LOAD);
    let value = Value::Real { of, most, rule };
    Scalar { name, value }
}

const fn big(name: &'static str, of: fn(&SampleRow) -> i64) -> Scalar {
    let value = Value::Big(of);
    Scalar { name, value }
}

impl Scalar {
    /// Adds the values of these samples as an array.
    pub(crate) fn column<'a>(&self, columns: Arrays<'a>, samples: &[&SampleRow]) -> Arrays<'a> {
        match self.value {
            Value::Real { of, .. } => {
                columns.column(samples, |sample| (of(sample) as f32).min(f32::MAX))
            }
            Value::Integer(of) => columns.column(samples, |sample| {
                i32::try_from(of(sample)).unwrap_or(i32::MAX)
            }),
            Value::Big(of) => columns.column(samples, |sample| of(sample)),
        }
    }

    /// The rule that the sample breaks.
    fn broken_rule(&self, sample: &SampleRow) -> Option<&'static str> {
        match self.value {
            Value::Real { of, most, rule } => (!(0.0..=most).contains(&of(sample))).then_some(rule),
            Value::Integer(of) | Value::Big(of) => {
                (of(sample) < 0).then_some("a number is below 0")
            }
        }
    }
}

impl SampleRow {
    /// The first rule of the declaration that a vital breaks.
    pub fn broken_rule(&self) -> Option<&'static str> {
        SCALARS.iter().find_map(|scalar| scalar.broken_rule(self))
    }
}

#[cfg(test)]
mod tests;
