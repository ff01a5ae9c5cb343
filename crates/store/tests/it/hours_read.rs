//! Hours that are computed when they are read: the views equal naive arithmetic over the samples, and read each of them once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use proptest::prelude::*;
use svc_store::{OptionalVitals, PartKind, PartRow, SampleRow};

use crate::{
    fixtures::{TestAgent, after, compact, disk, hour_passes, hours_ago, sample, world},
    support::{TestStore, property},
};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 3_600_000;
const COUNTERS: [(PartKind, &str); 3] = [
    (PartKind::InterfaceRx, "eth0"),
    (PartKind::DeviceReads, "sda"),
    (PartKind::PressureCpuSome, ""),
];

prop_compose! {
    /// A sample within four hours, with parts that come and go.
    fn any_sample()(
        at in 0..4 * HOUR,
        uptime in 0..50_i64,
        network in (0..1000_i64, prop_oneof![9 => 0..1000_i64, 1 => Just(1 << 62)]),
        counters in prop::array::uniform3((prop::bool::weighted(0.7), 0..1000_i64)),
        inodes in prop::option::of(0..1_i64 << 62),
        used in prop::collection::vec(0..120_i64, 0..3),
    ) -> SampleRow {
        let counters = COUNTERS.iter().zip(counters).filter(|(_, (named, _))| *named);
        let counters = counters.map(|((kind, name), (_, value))| part(*kind, name, value));
        let inodes = inodes.map(|value| part(PartKind::DiskInodesUsed, "/", value));
        let disks = ["/b", "/a"].iter().zip(used);
        SampleRow {
            uptime_seconds: uptime,
            network_rx_bytes: network.0,
            network_tx_bytes: network.1,
            disks: disks.map(|(name, percent)| disk(name, percent)).collect(),
            optional: Some(Box::new(OptionalVitals {
                parts: counters.chain(inodes).collect(),
                ..OptionalVitals::default()
            })),
            ..sample(0, after(hours_ago(6), at))
        }
    }
}

fn part(kind: PartKind, name: &str, value: i64) -> PartRow {
    PartRow {
        kind,
        name: name.into(),
        value,
    }
}

/// What is added from one reading (value and uptime) to the next; `None` is added where a counter falls without a boot.
fn increase(last: (i64, i64), now: (i64, i64), fallen: Option<i64>) -> i128 {
    let added = match (now.1 < last.1, now.0 >= last.0) {
        (true, _) => now.0,
        (false, true) => now.0 - last.0,
        (false, false) => fallen.unwrap_or(0),
    };
    added.into()
}

/// Lines as [`shown`] prints them. Hours are counted from the epoch.
fn expected(samples: &[SampleRow]) -> BTreeSet<String> {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| (sample.sampled_at, sample.seq));
    let hour = |sample: &SampleRow| sample.sampled_at.as_millisecond().div_euclid(HOUR);
    let mut totals: BTreeMap<i64, (usize, i128, i128)> = BTreeMap::new();
    let mut gauges: BTreeMap<(i64, String), Vec<i64>> = BTreeMap::new();
    let mut counters: BTreeMap<(i64, String), i128> = BTreeMap::new();
    let mut last: Option<&SampleRow> = None;
    let mut readings: BTreeMap<String, (i64, (i64, i64))> = BTreeMap::new();
    for now in &samples {
        let total = totals.entry(hour(now)).or_default();
        total.0 += 1;
        if let Some(last) = last.filter(|last| hour(last) >= hour(now) - 1) {
            let network = |of: fn(&SampleRow) -> i64| {
                let reading = |sample| (of(sample), sample.uptime_seconds);
                increase(reading(last), reading(now), None)
            };
            total.1 += network(|sample| sample.network_rx_bytes);
            total.2 += network(|sample| sample.network_tx_bytes);
        }
        last = Some(now);
        for disk in &now.disks {
            let mut gauge = |kind: &str, value| {
                let key = (hour(now), format!("{kind} {}", disk.mount_point));
                gauges.entry(key).or_default().push(value);
            };
            gauge("disk_used", disk.used_bytes);
            gauge("disk_total", disk.total_bytes);
        }
        for part in now.optional.iter().flat_map(|optional| &optional.parts) {
            let name = format!("{} {}", part.kind.name(), part.name);
            if part.kind == PartKind::DiskInodesUsed {
                gauges
                    .entry((hour(now), name))
                    .or_default()
                    .push(part.value);
                continue;
            }
            let reading = (part.value, now.uptime_seconds);
            let counter = counters.entry((hour(now), name.clone())).or_default();
            if let Some((_, before)) = readings.get(&name).filter(|(at, _)| *at >= hour(now) - 1) {
                *counter += increase(*before, reading, Some(part.value));
            }
            readings.insert(name, (hour(now), reading));
        }
    }
    let most = |sum: i128| sum.min(i64::MAX.into());
    let totals = totals
        .iter()
        .map(|(hour, (count, rx, tx))| format!("{hour} {count} {} {}", most(*rx), most(*tx)));
    let gauges = gauges.iter().map(|((hour, name), values)| {
        let (sum, count) = (
            values.iter().map(|value| i128::from(*value)).sum::<i128>(),
            values.len() as i128,
        );
        let mean = (2 * sum + count) / (2 * count);
        let (least, most) = (values.iter().min().unwrap(), values.iter().max().unwrap());
        format!("{hour} {name} {least} {mean} {most}")
    });
    let counters = counters
        .iter()
        .map(|((hour, name), sum)| format!("{hour} {name} {}", most(*sum)));
    totals.chain(gauges).chain(counters).collect()
}

/// The figures of both hourly views.
async fn shown(store: &TestStore, agent: TestAgent) -> Result<BTreeSet<String>> {
    let host = agent.host;
    let hour = "extract(epoch FROM hour)::bigint / 3600";
    let sql = format!(
        "SELECT concat_ws(' ', {hour}, sample_count, network_rx_bytes_increase, network_tx_bytes_increase)
           FROM host_metrics_hourly WHERE host_id = '{host}'
          UNION ALL
         SELECT concat_ws(' ', {hour}, kind, name, value_min, value_avg, value_max, increase)
           FROM host_metric_parts_hourly WHERE host_id = '{host}'"
    );
    Ok(store.sql(&sql).await?.lines().map(str::to_owned).collect())
}

/// The first samples are compacted, the others are loose; then all are compacted.
async fn play(store: &TestStore, mut samples: Vec<SampleRow>, early: usize) -> Result<()> {
    for (sample, seq) in samples.iter_mut().zip(1..) {
        sample.seq = seq;
    }
    let agent = TestAgent::new(store).await?;
    let (first, others) = samples.split_at(early.min(samples.len()));
    let mut arrived = 0;
    for part in [first, others] {
        if !part.is_empty() {
            agent.store(store, part).await?;
        }
        arrived += part.len();
        for when in ["loose", "compacted"] {
            let (found, expected) = (shown(store, agent).await?, expected(&samples[..arrived]));
            let differ: Vec<_> = found.symmetric_difference(&expected).collect();
            ensure!(differ.is_empty(), "{when}, {arrived} samples: {differ:?}");
            compact(store).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_of_loose_and_compacted_samples_equal_naive_arithmetic() -> Result<()> {
    let (store, _) = world().await?;
    let stories = (prop::collection::vec(any_sample(), 1..30), 0..30_usize);
    let play = async move |(samples, early)| play(&store, samples, early).await;
    property(24, stories, play).await
}

/// A host's samples of two days arrive at once, in two hours of arrival; those of others are there, too.
#[tokio::test]
async fn a_backlog_is_read_once_for_all_its_hours() -> Result<()> {
    let (store, agent) = world().await?;
    let other = TestAgent::new(&store).await?;
    other.store(&store, &[sample(1, hours_ago(1))]).await?;
    let samples: Vec<SampleRow> = (1..=480)
        .map(|seq| sample(seq, after(hours_ago(20), seq * 2 * MINUTE)))
        .collect();
    for arrived in samples.chunks(240) {
        agent.store(&store, arrived).await?;
        hour_passes(&store).await?;
        store.hours_create().await?;
    }
    for view in ["host_metrics_hourly", "host_metric_parts_hourly"] {
        let sql = format!(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * FROM {view} WHERE host_id = '{}'",
            agent.host
        );
        let plan = store.sql(&sql).await?;
        let scans = plan
            .lines()
            .filter(|line| line.contains("Scan") && line.contains("on samples_open_"));
        let heap = scans.filter(|line| !line.contains("Bitmap Index Scan"));
        let rows = heap.map(rows).sum::<Result<i64>>()?;
        assert_eq!(rows, 480, "{view}:\n{plan}");
    }
    Ok(())
}

/// How many rows a node of a plan has returned.
fn rows(line: &str) -> Result<i64> {
    let number = |name: &str| -> Result<i64> {
        let (_, rest) = line.split_once(name).context("never executed")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        Ok(digits.unwrap_or_default().parse()?)
    };
    match line.contains("never executed") {
        true => Ok(0),
        false => Ok(number("rows=")? * number("loops=")?),
    }
}
