//! A second implementation of the hourly rollups, computed from the samples in memory.
//! Tests compare the SQL against it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use svc_store::{HostId, SampleRow};
use tokio_postgres::{Client, Row};

/// Columns of `host_metrics_hourly` by name, as numbers. Times are in microseconds.
pub type Numbers = BTreeMap<&'static str, f64>;

#[derive(Debug, PartialEq)]
pub struct Hour {
    pub numbers: Numbers,
    pub fullest_disk: Option<String>,
}

const GAUGES: [fn(&SampleRow) -> f64; 7] = [
    |s| s.cpu_percent,
    |s| s.load[0],
    |s| s.load[1],
    |s| s.load[2],
    |s| s.memory_used_bytes as f64,
    |s| s.swap_used_bytes as f64,
    |s| s.process_count as f64,
];

/// The columns of each gauge.
const COLUMNS: [[&str; 3]; 7] = [
    ["cpu_percent_min", "cpu_percent_avg", "cpu_percent_max"],
    ["load_1m_min", "load_1m_avg", "load_1m_max"],
    ["load_5m_min", "load_5m_avg", "load_5m_max"],
    ["load_15m_min", "load_15m_avg", "load_15m_max"],
    [
        "memory_used_bytes_min",
        "memory_used_bytes_avg",
        "memory_used_bytes_max",
    ],
    [
        "swap_used_bytes_min",
        "swap_used_bytes_avg",
        "swap_used_bytes_max",
    ],
    [
        "process_count_min",
        "process_count_avg",
        "process_count_max",
    ],
];

const OTHERS: [&str; 8] = [
    "first_at",
    "last_at",
    "counters_from",
    "memory_total_bytes",
    "swap_total_bytes",
    "network_rx_bytes_increase",
    "network_tx_bytes_increase",
    "sample_count",
];

/// The rollups of one host's samples, by the Unix time at which their hour begins.
pub fn expected(samples: &[SampleRow]) -> BTreeMap<i64, Hour> {
    let mut in_order = samples.to_vec();
    in_order.sort_by_key(|s| (s.sampled_at, s.seq));
    let mut hours: BTreeMap<i64, Vec<SampleRow>> = BTreeMap::new();
    for sample in in_order {
        let hour = sample.sampled_at.as_second().div_euclid(3600) * 3600;
        hours.entry(hour).or_default().push(sample);
    }
    let before = |hour: i64| hours.get(&(hour - 3600)).and_then(|samples| samples.last());
    let rollup =
        |(hour, samples): (&i64, &Vec<SampleRow>)| (*hour, hour_of(before(*hour), samples));
    hours.iter().map(rollup).collect()
}

fn hour_of(before: Option<&SampleRow>, samples: &[SampleRow]) -> Hour {
    let mut numbers = Numbers::new();
    for (gauge, [min, avg, max]) in GAUGES.iter().zip(COLUMNS) {
        let values = samples.iter().map(gauge);
        numbers.insert(min, values.clone().fold(f64::INFINITY, f64::min));
        numbers.insert(max, values.clone().fold(f64::NEG_INFINITY, f64::max));
        let cut = values.map(|value| value.min(1e100));
        numbers.insert(avg, cut.sum::<f64>() / samples.len() as f64);
    }
    let first = &samples[0];
    let most = |of: fn(&SampleRow) -> i64| samples.iter().map(of).max().unwrap_or(0) as f64;
    let increase = |of: fn(&SampleRow) -> i64| increase(before, samples, of);
    numbers.extend([
        ("first_at", micros(first.sampled_at)),
        ("last_at", micros(samples[samples.len() - 1].sampled_at)),
        ("counters_from", micros(before.unwrap_or(first).sampled_at)),
        ("memory_total_bytes", most(|s| s.memory_total_bytes)),
        ("swap_total_bytes", most(|s| s.swap_total_bytes)),
        (
            "network_rx_bytes_increase",
            increase(|s| s.network_rx_bytes),
        ),
        (
            "network_tx_bytes_increase",
            increase(|s| s.network_tx_bytes),
        ),
        ("sample_count", samples.len() as f64),
    ]);
    let fullest = fullest_disk(samples);
    if let Some((percent, _)) = &fullest {
        numbers.insert("fullest_disk_percent", *percent);
    }
    Hour {
        numbers,
        fullest_disk: fullest.map(|(_, mount_point)| mount_point),
    }
}

fn increase(before: Option<&SampleRow>, samples: &[SampleRow], of: fn(&SampleRow) -> i64) -> f64 {
    let mut total: i128 = 0;
    let mut last = before.map(of);
    for now in samples.iter().map(of) {
        total += match last {
            None => 0,
            Some(last) if now < last => i128::from(now),
            Some(last) => i128::from(now) - i128::from(last),
        };
        last = Some(now);
    }
    total.min(i128::from(i64::MAX)) as f64
}

fn fullest_disk(samples: &[SampleRow]) -> Option<(f64, String)> {
    let mut fullest: Option<(f64, String)> = None;
    for disk in samples.iter().flat_map(|s| &s.disks) {
        if disk.total_bytes == 0 {
            continue;
        }
        let percent = (100.0 * disk.used_bytes as f64 / disk.total_bytes as f64).min(100.0);
        let better = fullest.as_ref().is_none_or(|(most, name)| {
            percent > *most || (percent == *most && disk.mount_point < *name)
        });
        if better {
            fullest = Some((percent, disk.mount_point.clone()));
        }
    }
    fullest
}

fn micros(at: Timestamp) -> f64 {
    at.as_microsecond() as f64
}

/// The rollups of one host in the database.
pub async fn stored(client: &Client, host: HostId) -> Result<BTreeMap<i64, Hour>> {
    let sql = "SELECT extract(epoch FROM hour)::bigint AS starts, h.* FROM host_metrics_hourly h WHERE host_id = $1";
    let rows = client.query(sql, &[&host.0]).await?;
    rows.iter().map(hour_from_row).collect()
}

fn hour_from_row(row: &Row) -> Result<(i64, Hour)> {
    let mut numbers = Numbers::new();
    for name in COLUMNS.into_iter().flatten().chain(OTHERS) {
        numbers.insert(name, number(row, name)?);
    }
    if let Some(percent) = row.try_get("fullest_disk_percent")? {
        numbers.insert("fullest_disk_percent", percent);
    }
    let fullest_disk = row.try_get("fullest_disk_mount_point")?;
    let hour = Hour {
        numbers,
        fullest_disk,
    };
    Ok((row.try_get("starts")?, hour))
}

fn number(row: &Row, name: &str) -> Result<f64> {
    let float = || row.try_get::<_, f64>(name);
    let integer = || row.try_get::<_, i64>(name).map(|n| n as f64);
    let small = || row.try_get::<_, i32>(name).map(f64::from);
    let time = || row.try_get::<_, Timestamp>(name).map(micros);
    let number = float()
        .or_else(|_| integer())
        .or_else(|_| small())
        .or_else(|_| time());
    number.context(name.to_owned())
}

/// Fails unless both are equal. Means may differ in their last digits, because sums of
/// floating-point numbers depend on their order, and means of integers are rounded.
pub fn compare(expected: &BTreeMap<i64, Hour>, stored: &BTreeMap<i64, Hour>) -> Result<()> {
    let hours = |of: &BTreeMap<i64, Hour>| of.keys().copied().collect::<Vec<_>>();
    ensure!(
        hours(expected) == hours(stored),
        "hours: {:?} {:?}",
        hours(expected),
        hours(stored)
    );
    for (starts, ours) in expected {
        let theirs = &stored[starts];
        ensure!(
            ours.fullest_disk == theirs.fullest_disk,
            "{starts}: {ours:?} {theirs:?}"
        );
        ensure!(
            ours.numbers.len() == theirs.numbers.len(),
            "{starts}: {ours:?} {theirs:?}"
        );
        for (name, expected) in &ours.numbers {
            let found = theirs.numbers[name];
            let slack = if name.ends_with("_avg") {
                expected.abs() * 1e-9 + 0.5
            } else {
                0.0
            };
            let slack = if name.starts_with("cpu") || name.starts_with("load") {
                slack.min(expected.abs() * 1e-9)
            } else {
                slack
            };
            ensure!(
                (found - expected).abs() <= slack,
                "{starts} {name}: {found} instead of {expected}"
            );
        }
    }
    Ok(())
}
