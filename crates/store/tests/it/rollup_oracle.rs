//! The hourly views as docs/data-model.md describes them, computed from the samples in memory. It shares no code with the
//! compaction and the views, which tests compare with it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use svc_store::{HostId, PartKind, SampleRow};

use crate::support::*;

type Real = (&'static str, fn(&SampleRow) -> f64);
type Whole = fn(&SampleRow) -> i64;

const REALS: [Real; 4] = [
    ("cpu_percent", |s| s.cpu_percent),
    ("load_1m", |s| s.load[0]),
    ("load_5m", |s| s.load[1]),
    ("load_15m", |s| s.load[2]),
];

/// The rollups of one host. Hours are counted from the epoch, times are in microseconds.
#[derive(Debug, Default, PartialEq)]
pub struct Rollups {
    /// Lines of figures that are exact.
    figures: BTreeSet<String>,
    /// The least, the mean and the greatest by hour and name.
    reals: BTreeMap<String, [f64; 3]>,
}

/// The rollups of one host's samples. Of all parts in these tests, disks and inodes alone are gauges.
pub fn expected(samples: &[SampleRow]) -> Rollups {
    let mut samples: Vec<&SampleRow> = samples.iter().collect();
    samples.sort_by_key(|sample| (sample.sampled_at, sample.seq));
    let mut hours: BTreeMap<i64, Vec<&SampleRow>> = BTreeMap::new();
    for &sample in &samples {
        hours.entry(hour(sample)).or_default().push(sample);
    }
    let mut rollups = Rollups::default();
    for (hour, samples) in &hours {
        let before = hours.get(&(hour - 1)).and_then(|samples| samples.last());
        rollups
            .figures
            .insert(totals(*hour, before.copied(), samples));
        for (name, of) in REALS {
            // They are stored in single precision.
            let values = samples.iter().map(|sample| f64::from(of(sample) as f32));
            let least = values.clone().fold(f64::INFINITY, f64::min);
            let greatest = values.clone().fold(f64::NEG_INFINITY, f64::max);
            let mean = values.sum::<f64>() / samples.len() as f64;
            let key = format!("{hour} {name}");
            rollups.reals.insert(key, [least, mean, greatest]);
        }
    }
    rollups.figures.extend(parts(&samples));
    rollups
}

fn hour(sample: &SampleRow) -> i64 {
    sample.sampled_at.as_second().div_euclid(3600)
}

fn totals(hour: i64, before: Option<&SampleRow>, samples: &[&SampleRow]) -> String {
    let values = |of: Whole| -> Vec<i64> { samples.iter().map(|sample| of(sample)).collect() };
    let span = |of: Whole| span(&values(of));
    let most = |of: Whole| values(of).into_iter().max().unwrap_or(0);
    let increase = |of: Whole| {
        let (mut last, mut total) = (before, 0);
        for &now in samples {
            let reading = |sample: &SampleRow| (of(sample), sample.uptime_seconds);
            total += last.map_or(0, |last| increase(reading(last), reading(now), None));
            last = Some(now);
        }
        bounded(total)
    };
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    let times = [first, last, before.unwrap_or(first)].map(|sample| micros(sample.sampled_at));
    let line = [
        format!("{hour} {} {}", samples.len(), times.join(" ")),
        span(|s| s.memory_used_bytes),
        most(|s| s.memory_total_bytes).to_string(),
        span(|s| s.swap_used_bytes),
        most(|s| s.swap_total_bytes).to_string(),
        span(|s| s.process_count),
        increase(|s| s.network_rx_bytes),
        increase(|s| s.network_tx_bytes),
    ];
    line.into_iter()
        .chain(fullest_disk(samples))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The least value, the mean, rounded half up, and the greatest one.
fn span(values: &[i64]) -> String {
    let (sum, count) = (values.iter().copied().map(i128::from), values.len() as i128);
    let mean = (2 * sum.sum::<i128>() + count) / (2 * count);
    let (least, greatest) = (values.iter().min(), values.iter().max());
    format!("{} {mean} {}", least.unwrap_or(&0), greatest.unwrap_or(&0))
}

/// What is added from one reading (value and uptime) to the next; `fallen`, or nothing, where a counter falls without a boot.
fn increase(last: (i64, i64), now: (i64, i64), fallen: Option<i64>) -> i128 {
    let added = match (now.1 < last.1, now.0 >= last.0) {
        (true, _) => now.0,
        (false, true) => now.0 - last.0,
        (false, false) => fallen.unwrap_or(0),
    };
    added.into()
}

fn bounded(total: i128) -> String {
    total.min(i64::MAX.into()).to_string()
}

/// Its percentage, at most 100, and its mount point: the first one if several are equally full.
fn fullest_disk(samples: &[&SampleRow]) -> Option<String> {
    let mut fullest: Option<(f64, &str)> = None;
    let disks = samples.iter().flat_map(|sample| &sample.disks);
    for disk in disks.filter(|disk| disk.total_bytes > 0) {
        let percent = (100.0 * disk.used_bytes as f64 / disk.total_bytes as f64).min(100.0);
        let name = disk.mount_point.as_str();
        if fullest.is_none_or(|(most, first)| percent > most || (percent == most && name < first)) {
            fullest = Some((percent, name));
        }
    }
    fullest.map(|(percent, name)| format!("{percent} {name}"))
}

/// Kind, name, value and whether it is a gauge of all disks and other parts of a sample.
fn parts_of(sample: &SampleRow) -> impl Iterator<Item = (String, i64, bool)> {
    let disks = sample.disks.iter().flat_map(|disk| {
        let name = &disk.mount_point;
        [
            (format!("disk_used {name}"), disk.used_bytes, true),
            (format!("disk_total {name}"), disk.total_bytes, true),
        ]
    });
    let others = sample.optional.iter().flat_map(|optional| &optional.parts);
    disks.chain(others.map(|part| {
        let name = format!("{} {}", part.kind.name(), part.name);
        (name, part.value, part.kind == PartKind::DiskInodesUsed)
    }))
}

/// A line for each part and hour, from samples in the order of their times.
fn parts(samples: &[&SampleRow]) -> impl Iterator<Item = String> {
    let mut gauges: BTreeMap<(i64, String), Vec<i64>> = BTreeMap::new();
    let mut counters: BTreeMap<(i64, String), i128> = BTreeMap::new();
    let mut readings: BTreeMap<String, (i64, (i64, i64))> = BTreeMap::new();
    for &sample in samples {
        for (name, value, is_gauge) in parts_of(sample) {
            let key = (hour(sample), name.clone());
            if is_gauge {
                gauges.entry(key).or_default().push(value);
                continue;
            }
            let reading = (value, sample.uptime_seconds);
            let total = counters.entry(key).or_default();
            let last = readings.insert(name, (hour(sample), reading));
            if let Some((_, last)) = last.filter(|(at, _)| *at >= hour(sample) - 1) {
                *total += increase(last, reading, Some(value));
            }
        }
    }
    let gauges = gauges
        .into_iter()
        .map(|((hour, name), values)| format!("{hour} {name} {}", span(&values)));
    let counters = counters
        .into_iter()
        .map(|((hour, name), total)| format!("{hour} {name} {}", bounded(total)));
    gauges.chain(counters)
}

fn micros(at: Timestamp) -> String {
    at.as_microsecond().to_string()
}

/// What the hourly views have of a host.
pub async fn shown(store: &TestStore, host: HostId) -> Result<Rollups> {
    let hour = "extract(epoch FROM hour)::bigint / 3600";
    let figures = format!(
        "SELECT concat_ws(' ', {hour}, sample_count, (extract(epoch FROM first_at) * 1000000)::bigint, (extract(epoch FROM last_at) * 1000000)::bigint,
                (extract(epoch FROM counters_from) * 1000000)::bigint, memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max,
                memory_total_bytes, swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes, process_count_min,
                process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase, fullest_disk_percent,
                fullest_disk_mount_point)
           FROM host_metrics_hourly WHERE host_id = '{host}'
          UNION ALL
         SELECT concat_ws(' ', {hour}, kind, name, value_min, value_avg, value_max, increase)
           FROM host_metric_parts_hourly WHERE host_id = '{host}'"
    );
    let span = |(name, _): &Real| format!("('{name}', {name}_min, {name}_avg, {name}_max)");
    let reals = format!(
        "SELECT concat_ws(' ', {hour}, name, least, mean, greatest) FROM host_metrics_hourly
          CROSS JOIN LATERAL (VALUES {}) AS r(name, least, mean, greatest) WHERE host_id = '{host}'",
        REALS.each_ref().map(span).join(", ")
    );
    let real = |line: &str| {
        let mut words = line.rsplitn(4, ' ');
        let mut number = || Ok::<f64, anyhow::Error>(words.next().context("a number")?.parse()?);
        let (greatest, mean, least) = (number()?, number()?, number()?);
        let key = words.next().context("hour and name")?.to_owned();
        Ok((key, [least, mean, greatest]))
    };
    let (figures, reals) = (store.sql(&figures).await?, store.sql(&reals).await?);
    let rollups = Rollups {
        figures: figures.lines().map(str::to_owned).collect(),
        reals: reals.lines().map(real).collect::<Result<_>>()?,
    };
    let lines = figures.lines().count();
    ensure!(rollups.figures.len() == lines, "a line twice: {figures}");
    Ok(rollups)
}

/// Fails unless the views show the rollups of these samples. Means may differ in their last digits, because sums of
/// floating-point numbers depend on their order.
pub async fn check(store: &TestStore, host: HostId, samples: &[SampleRow]) -> Result<()> {
    let (shown, expected) = (shown(store, host).await?, expected(samples));
    let differ: Vec<_> = shown
        .figures
        .symmetric_difference(&expected.figures)
        .collect();
    ensure!(differ.is_empty(), "{} samples: {differ:#?}", samples.len());
    ensure!(shown.reals.keys().eq(expected.reals.keys()), "{shown:?}");
    for (name, expected) in &expected.reals {
        let found = shown.reals[name];
        let is_near = (found[1] - expected[1]).abs() <= expected[1].abs() * 1e-9;
        let is_same = (found[0], found[2]) == (expected[0], expected[2]) && is_near;
        ensure!(is_same, "{name}: {found:?} instead of {expected:?}");
    }
    Ok(())
}

/// Fails unless the view of parts has the values of these samples, once each.
pub async fn check_values(store: &TestStore, host: HostId, samples: &[SampleRow]) -> Result<()> {
    let values = format!(
        "SELECT concat_ws(' ', (extract(epoch FROM sampled_at) * 1000000)::bigint, kind, name, value)
           FROM host_metric_parts WHERE host_id = '{host}'"
    );
    let shown = store.sql(&values).await?;
    let mut shown: Vec<String> = shown.lines().map(str::to_owned).collect();
    let of = |sample: &SampleRow| {
        let at = micros(sample.sampled_at);
        let line = move |(name, value, _)| format!("{at} {name} {value}");
        parts_of(sample).map(line).collect::<Vec<String>>()
    };
    let mut expected: Vec<String> = samples.iter().flat_map(of).collect();
    shown.sort();
    expected.sort();
    ensure!(shown == expected, "{shown:#?} instead of {expected:#?}");
    Ok(())
}
