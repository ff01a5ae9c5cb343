//! Rollups and parts equal a computation from all samples, whatever the order of deliveries, and whether they are stored or
//! computed when they are read.

use anyhow::{Context, Result};
use proptest::prelude::*;
use svc_store::{PartKind, SampleRow};
use tokio::time::timeout;

use crate::{
    fixtures::*,
    rollup_oracle::{check, check_values, shown},
    support::*,
};

/// Three counters and a gauge.
const PARTS: [(PartKind, &str); 4] = [
    (PartKind::InterfaceRx, "eth0"),
    (PartKind::DeviceWrittenBytes, "sda"),
    (PartKind::DiskInodesUsed, "/"),
    (PartKind::PressureCpuSome, ""),
];

/// One agent's samples in the order of their numbers, which is not the order of their
/// times, and deliveries of parts of them, repeated and in any order.
#[derive(Clone, Debug)]
struct Story {
    samples: Vec<SampleRow>,
    deliveries: Vec<Delivery>,
}

#[derive(Clone, Copy, Debug)]
struct Delivery {
    first: usize,
    length: usize,
    compacts: bool,
}

/// How the values of a part are distributed.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// Multiples of a unit, by so many bits.
    Units { unit: i64, bits: u32 },
    /// 0 or the greatest number that an agent may send.
    Absurd,
}

impl Course {
    fn value(self, chance: i64) -> i64 {
        match self {
            Course::Units { unit, bits } => chance % (1 << bits) * unit,
            Course::Absurd => chance % 2 * MOST,
        }
    }
}

prop_compose! {
    /// A sample within six hours, with counters that grow, stall or restart at 0, and with
    /// disks and parts that come and go. The values of its parts are numbers for [`Course::value`].
    fn any_sample()(
        at in 0..6 * HOUR,
        cpu in 0.0..100.0_f64,
        load in prop_oneof![9 => 0.0..50.0_f64, 1 => Just(3e38)],
        memory in 0..1_i64 << 40,
        counters in prop_oneof![8 => (0..1_i64 << 40, 0..1_i64 << 30), 1 => Just((MOST, 0)), 1 => Just((0, MOST))],
        processes in 0..1_000_i64,
        uptime in 0..100_i64,
        names in Just(["/b", "/a", "/c"]).prop_shuffle(),
        sizes in prop::collection::vec((0..110_i64, prop::bool::weighted(0.9)), 0..3),
        parts in prop::array::uniform4((prop::bool::weighted(0.7), 0..1_i64 << 50)),
    ) -> SampleRow {
        let mut any = sample(0, after(hours_ago(8), at));
        any.cpu_percent = cpu;
        any.load = [load, load / 2.0, 1.0];
        any.memory_used_bytes = memory;
        any.swap_used_bytes = memory / 7;
        (any.network_rx_bytes, any.network_tx_bytes) = counters;
        any.process_count = processes;
        any.uptime_seconds = uptime;
        any.disks = names.iter().zip(sizes).map(|(name, (percent, sized))| {
            let mut disk = disk(name, percent);
            disk.total_bytes *= i64::from(sized);
            disk
        }).collect();
        let parts = PARTS.iter().zip(parts).filter(|(_, (there, _))| *there);
        with_parts(any, parts.map(|((kind, name), (_, chance))| part(*kind, name, chance)).collect())
    }
}

fn any_course() -> impl Strategy<Value = Course> {
    let unit = prop_oneof![Just(1_i64), Just(512), Just(4096), 1..4096_i64];
    let units = (unit, 0..=50_u32).prop_map(|(unit, bits)| Course::Units { unit, bits });
    prop_oneof![7 => units, 1 => Just(Course::Absurd)]
}

prop_compose! {
    fn any_delivery()(first in 0..40_usize, length in 1..15_usize, compacts in prop::bool::weighted(0.2)) -> Delivery {
        Delivery { first, length, compacts }
    }
}

prop_compose! {
    fn any_story()(
        mut samples in prop::collection::vec(any_sample(), 1..40),
        courses in [any_course(), any_course(), any_course(), any_course()],
        in_order: bool,
        mut deliveries in prop::collection::vec(any_delivery(), 0..12),
    ) -> Story {
        if in_order {
            samples.sort_by_key(|sample| sample.sampled_at);
        }
        for (sample, seq) in samples.iter_mut().zip(1..) {
            sample.seq = seq;
            for part in sample.optional.iter_mut().flat_map(|optional| &mut optional.parts) {
                let which = PARTS.iter().position(|(kind, _)| *kind == part.kind);
                part.value = courses[which.unwrap()].value(part.value);
            }
        }
        deliveries.push(Delivery { first: 0, length: samples.len(), compacts: true });
        Story { samples, deliveries }
    }
}

impl Story {
    /// Delivers the samples for a host of its own, and compares what is stored of it.
    async fn play(&self, store: &TestStore) -> Result<()> {
        let agent = TestAgent::new(store).await?;
        let mut stored = 0;
        for delivery in &self.deliveries {
            let last = self.samples.len().min(delivery.first + delivery.length);
            if let Some(part @ [_, ..]) = self.samples.get(delivery.first..last) {
                agent.store(store, part).await?;
            }
            if delivery.first <= stored {
                stored = stored.max(last);
            }
            if delivery.compacts {
                let stored = &self.samples[..stored];
                check_all(store, agent, stored).await.context("loose")?;
                compact(store).await?;
                check_all(store, agent, stored).await.context("compacted")?;
            }
        }
        Ok(())
    }
}

async fn check_all(store: &TestStore, agent: TestAgent, samples: &[SampleRow]) -> Result<()> {
    check(store, agent.host, samples).await?;
    check_values(store, agent.host, samples).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rollups_are_exact_after_duplicates_reordering_late_samples_and_resets() -> Result<()> {
    let (store, _) = world().await?;
    let play = async move |story: Story| story.play(&store).await;
    property(40, any_story(), play).await
}

/// After a boot a counter counts from 0, also where it is higher than before. Where it falls without one, nothing is added.
#[tokio::test]
async fn a_late_sample_changes_its_hour_and_the_increase_of_the_next() -> Result<()> {
    let (store, agent) = world().await?;
    let second = hours_ago(2);
    let received = |seq, millis: i64, rx, uptime_seconds| SampleRow {
        network_rx_bytes: rx,
        uptime_seconds,
        ..sample(seq, after(second, millis))
    };
    let increases = "SELECT string_agg(concat(network_rx_bytes_increase, '/', sample_count), ' ' ORDER BY hour) FROM";
    let on_demand = format!("{increases} host_metrics_hourly");
    let stored = format!("{increases} host_rollups");
    let samples = [
        received(1, -HOUR, 100, 1000),
        received(2, 1, 500, 4600),
        received(3, 2, 600, 4600),
    ];
    let late = received(4, -1, 450, 4599);
    let fallen = received(5, 3, 40, 4600);
    let booted = received(6, 4, 90, 5);
    for (new, expected) in [
        (samples.as_slice(), "0/1 500/2"),
        (&[late], "350/2 150/2"),
        (&[fallen], "350/2 150/3"),
        (&[booted], "350/2 240/4"),
    ] {
        agent.store(&store, new).await?;
        assert_eq!(store.sql(&on_demand).await?, expected);
        compact(&store).await?;
        assert_eq!(store.sql(&stored).await?, expected);
        assert_eq!(store.sql(&on_demand).await?, expected);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_that_arrive_during_compactions_are_rolled_up() -> Result<()> {
    const SAMPLES: i64 = 60;
    let (store, agent) = world().await?;
    let numbered = |seq: i64| sample(seq, after(hours_ago(4), seq * HOUR / 25));
    let storing = async {
        for seq in 1..=SAMPLES {
            agent.store(&store, &[numbered(seq)]).await?;
        }
        anyhow::Ok(())
    };
    let compacting = async {
        for _ in 0..5 {
            compact(&store).await?;
        }
        anyhow::Ok(())
    };
    let sibling = async {
        for _ in 0..50 {
            store.hours_seal().await?;
            store.compaction_step(10).await?;
        }
        anyhow::Ok(())
    };
    let race = async { tokio::try_join!(storing, compacting, sibling) };
    timeout(PATIENCE * 4, race).await??;
    let samples: Vec<SampleRow> = (1..=SAMPLES).map(numbered).collect();
    check(&store, agent.host, &samples).await?;
    compact(&store).await?;
    check(&store, agent.host, &samples).await
}

#[tokio::test]
async fn a_rollup_is_kept_after_its_samples_are_dropped() -> Result<()> {
    let (store, agent) = world().await?;
    let at = |seq: i64| after(hours_ago(4), seq * HOUR / 3);
    let samples: Vec<SampleRow> = (1..=4).map(|seq| sample(seq, at(seq))).collect();
    agent.store(&store, &samples).await?;
    compact(&store).await?;
    check(&store, agent.host, &samples).await?;
    let before = shown(&store, agent.host).await?;
    store.sql("TRUNCATE sample_chunks").await?;
    let late = [
        sample(5, after(hours_ago(4), 1)),
        sample(6, after(hours_ago(3), 2 * HOUR / 3)),
    ];
    agent.store(&store, &late).await?;
    assert_eq!(shown(&store, agent.host).await?, before, "on demand");
    assert_eq!(compact(&store).await?, 2);
    assert_eq!(shown(&store, agent.host).await?, before);
    Ok(())
}

/// A host's samples of two days arrive at once, in two hours of arrival; those of others are there, too.
#[tokio::test]
async fn a_backlog_is_read_once_for_all_its_hours() -> Result<()> {
    let (store, agent) = world().await?;
    let other = TestAgent::new(&store).await?;
    other.store(&store, &[sample(1, hours_ago(1))]).await?;
    let at = |seq: i64| after(hours_ago(20), seq * 2 * MINUTE);
    let samples: Vec<SampleRow> = (1..=480).map(|seq| sample(seq, at(seq))).collect();
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
