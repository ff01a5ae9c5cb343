//! The hourly rollups as docs/data-model.md describes them, computed from the samples in memory. It shares no code with the
//! compaction and the views, which tests compare with it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use svc_store::{HostId, SampleRow};
use tokio_postgres::{Client, Row};

/// Columns of `host_metrics_hourly` by name, as numbers. Times are in microseconds.
pub type Numbers = BTreeMap<String, f64>;

#[derive(Debug, PartialEq)]
pub struct Hour {
    pub numbers: Numbers,
    pub fullest_disk: Option<String>,
}

type Gauge = (&'static str, fn(&SampleRow) -> f64);

/// Values with three columns each: minimum, average and maximum.
const GAUGES: [Gauge; 7] = [
    ("cpu_percent", |s| kept(s.cpu_percent)),
    ("load_1m", |s| kept(s.load[0])),
    ("load_5m", |s| kept(s.load[1])),
    ("load_15m", |s| kept(s.load[2])),
    ("memory_used_bytes", |s| s.memory_used_bytes as f64),
    ("swap_used_bytes", |s| s.swap_used_bytes as f64),
    ("process_count", |s| s.process_count as f64),
];

/// Percentages and loads are stored in single precision.
fn kept(value: f64) -> f64 {
    f64::from(value as f32)
}

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
    for (name, gauge) in GAUGES {
        let values = samples.iter().map(gauge);
        let average = values.clone().map(|value| value.min(1e100)).sum::<f64>();
        let (min, max) = (
            values.clone().fold(f64::INFINITY, f64::min),
            values.fold(f64::NEG_INFINITY, f64::max),
        );
        numbers.insert(format!("{name}_min"), min);
        numbers.insert(format!("{name}_avg"), average / samples.len() as f64);
        numbers.insert(format!("{name}_max"), max);
    }
    let (first, last) = (&samples[0], &samples[samples.len() - 1]);
    let most = |of: fn(&SampleRow) -> i64| samples.iter().map(of).max().unwrap_or(0) as f64;
    let increase = |of: fn(&SampleRow) -> i64| increase(before, samples, of);
    let others = [
        micros(first.sampled_at),
        micros(last.sampled_at),
        micros(before.unwrap_or(first).sampled_at),
        most(|s| s.memory_total_bytes),
        most(|s| s.swap_total_bytes),
        increase(|s| s.network_rx_bytes),
        increase(|s| s.network_tx_bytes),
        samples.len() as f64,
    ];
    numbers.extend(OTHERS.map(str::to_owned).into_iter().zip(others));
    let fullest = fullest_disk(samples);
    if let Some((percent, _)) = &fullest {
        numbers.insert("fullest_disk_percent".into(), *percent);
    }
    Hour {
        numbers,
        fullest_disk: fullest.map(|(_, mount_point)| mount_point),
    }
}

fn increase(before: Option<&SampleRow>, samples: &[SampleRow], of: fn(&SampleRow) -> i64) -> f64 {
    let mut total: i128 = 0;
    let mut last = before;
    for now in samples {
        total += match last {
            None => 0,
            Some(last) if now.uptime_seconds < last.uptime_seconds => i128::from(of(now)),
            Some(last) => (i128::from(of(now)) - i128::from(of(last))).max(0),
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
    let gauges = GAUGES
        .iter()
        .flat_map(|(name, _)| ["min", "avg", "max"].map(|of| format!("{name}_{of}")));
    for name in gauges.chain(OTHERS.map(str::to_owned)) {
        let number = number(row, &name)?;
        numbers.insert(name, number);
    }
    if let Some(percent) = row.try_get("fullest_disk_percent")? {
        numbers.insert("fullest_disk_percent".into(), percent);
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
        let same_disk = ours.fullest_disk == theirs.fullest_disk;
        let same_columns = ours.numbers.keys().eq(theirs.numbers.keys());
        ensure!(same_disk && same_columns, "{starts}: {ours:?} {theirs:?}");
        for (name, expected) in &ours.numbers {
            let found = theirs.numbers[name];
            let is_float = name.starts_with("cpu") || name.starts_with("load");
            let slack = match name.ends_with("_avg") {
                true if is_float => expected.abs() * 1e-9,
                true => expected.abs() * 1e-9 + 0.5,
                false => 0.0,
            };
            let same = (found - expected).abs() <= slack;
            ensure!(same, "{starts} {name}: {found} instead of {expected}");
        }
    }
    Ok(())
}
