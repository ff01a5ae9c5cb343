//! Rollups equal a computation from all samples, whatever the order of deliveries, and whether they are stored or
//! computed when they are read.

use anyhow::{Context, Result};
use jiff::Timestamp;
use proptest::prelude::*;
use svc_store::{Range, SampleRow};
use tokio::time::timeout;

use crate::{
    fixtures::{TestAgent, after, compact, disk, hours_ago, sample, world},
    rollup_oracle::{compare, expected, stored},
    support::{PATIENCE, TestStore, property},
};

const HOUR: i64 = 3_600_000;

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

prop_compose! {
    /// A sample within six hours, with counters that grow, stall or restart at 0, and with
    /// disks that come and go.
    fn any_sample()(
        at in 0..6 * HOUR,
        cpu in 0.0..100.0_f64,
        load in prop_oneof![9 => 0.0..50.0_f64, 1 => Just(3e38)],
        memory in 0..1_i64 << 40,
        counters in prop_oneof![8 => (0..1_i64 << 40, 0..1_i64 << 30), 1 => Just((1_i64 << 62, 0)), 1 => Just((0, 1_i64 << 62))],
        processes in 0..1_000_i64,
        uptime in 0..100_i64,
        disks in prop::collection::vec(("/[a-c]", 0..110_i64, prop::bool::weighted(0.9)), 0..3),
    ) -> SampleRow {
        let mut any = sample(0, after(hours_ago(8), at));
        any.cpu_percent = cpu;
        any.load = [load, load / 2.0, 1.0];
        any.memory_used_bytes = memory;
        any.swap_used_bytes = memory / 7;
        (any.network_rx_bytes, any.network_tx_bytes) = counters;
        any.process_count = processes;
        any.uptime_seconds = uptime;
        any.disks = disks.iter().map(|(name, percent, sized)| {
            let mut disk = disk(name, *percent);
            disk.total_bytes *= i64::from(*sized);
            disk
        }).collect();
        any
    }
}

prop_compose! {
    fn any_delivery()(first in 0..40_usize, length in 1..15_usize, compacts in prop::bool::weighted(0.2)) -> Delivery {
        Delivery { first, length, compacts }
    }
}

prop_compose! {
    fn any_story()(
        mut samples in prop::collection::vec(any_sample(), 1..40),
        mut deliveries in prop::collection::vec(any_delivery(), 0..12),
    ) -> Story {
        for (sample, seq) in samples.iter_mut().zip(1..) {
            sample.seq = seq;
        }
        deliveries.push(Delivery { first: 0, length: samples.len(), compacts: false });
        Story { samples, deliveries }
    }
}

impl Story {
    fn range(&self, agent: &TestAgent, delivery: Delivery) -> Option<Range> {
        let rest = self.samples.get(delivery.first..)?;
        let part = &rest[..rest.len().min(delivery.length)];
        (!part.is_empty()).then(|| agent.range(part, &[]))
    }

    /// Delivers the samples for a host of its own, and compares the rollups.
    async fn play(&self, store: &TestStore) -> Result<()> {
        let agent = TestAgent::new(store).await?;
        for delivery in &self.deliveries {
            if let Some(range) = self.range(&agent, *delivery) {
                store.samples_append(&[range]).await?;
            }
            if delivery.compacts {
                compact(store).await?;
            }
        }
        let (client, expected) = (store.connect().await?, expected(&self.samples));
        compare(&expected, &stored(&client, agent.host).await?).context("on demand")?;
        compact(store).await?;
        compare(&expected, &stored(&client, agent.host).await?).context("stored")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rollups_are_exact_after_duplicates_reordering_late_samples_and_resets() -> Result<()> {
    let (store, _) = world().await?;
    let play = async move |story: Story| story.play(&store).await;
    property(24, any_story(), play).await
}

#[tokio::test]
async fn a_late_sample_changes_its_hour_and_the_increase_of_the_next() -> Result<()> {
    let (store, agent) = world().await?;
    let received = |seq, at: Timestamp, rx| SampleRow {
        network_rx_bytes: rx,
        uptime_seconds: at.as_second(),
        ..sample(seq, at)
    };
    let (first, second) = (hours_ago(3), hours_ago(2));
    let increases = "SELECT string_agg(concat(network_rx_bytes_increase, '/', sample_count), ' ' ORDER BY hour) FROM ";
    let (on_demand, stored) = (
        format!("{increases} host_metrics_hourly"),
        format!("{increases} host_rollups"),
    );
    let samples = [
        received(1, first, 100),
        received(2, after(second, 1), 500),
        received(3, after(second, 2), 600),
    ];
    let late = received(4, after(second, -1), 450);
    let lost = received(5, after(second, 3), 40);
    let booted = SampleRow {
        uptime_seconds: 5,
        ..received(6, after(second, 4), 30)
    };
    for (new, expected) in [
        (samples.as_slice(), "0/1 500/2"),
        (&[late], "350/2 150/2"),
        (&[lost], "350/2 150/3"),
        (&[booted], "350/2 180/4"),
    ] {
        agent.store(&store, new).await?;
        assert_eq!(store.sql(&on_demand).await?, expected);
        compact(&store).await?;
        assert_eq!(store.sql(&stored).await?, expected);
        assert_eq!(store.sql(&on_demand).await?, expected);
    }
    Ok(())
}

/// After a boot a counter counts from 0, also where it is higher than before. Where it falls without one, nothing is added.
#[tokio::test]
async fn counters_go_on_from_the_hour_before_or_from_a_boot() -> Result<()> {
    let (store, _) = world().await?;
    let received = |seq: i64, at: Timestamp, rx: i64, uptime_seconds: i64| SampleRow {
        network_rx_bytes: rx,
        uptime_seconds,
        ..sample(seq, at)
    };
    for (first_rx, uptime, expected) in [
        (150, 4000, 120),
        (40, 4000, 70),
        (40, 5, 110),
        (150, 5, 220),
    ] {
        let agent = TestAgent::new(&store).await?;
        let at = hours_ago(2);
        let samples = [
            received(1, after(at, -2), 90, 3000),
            received(2, after(at, -1), 100, 3001),
            received(3, after(at, 1), first_rx, uptime),
            received(4, after(at, 2), first_rx + 70, uptime + 1),
        ];
        agent.store(&store, &samples).await?;
        compact(&store).await?;
        let increase = format!(
            "SELECT string_agg(network_rx_bytes_increase::text, ' ' ORDER BY hour) FROM host_rollups WHERE host_id = '{}'",
            agent.host
        );
        assert_eq!(store.sql(&increase).await?, format!("10 {expected}"));
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
    let client = store.connect().await?;
    compare(&expected(&samples), &stored(&client, agent.host).await?)?;
    compact(&store).await?;
    compare(&expected(&samples), &stored(&client, agent.host).await?)
}

#[tokio::test]
async fn a_rollup_is_kept_after_its_samples_are_dropped() -> Result<()> {
    let (store, agent) = world().await?;
    let client = store.connect().await?;
    let at = |seq: i64| after(hours_ago(4), seq * HOUR / 3);
    let samples: Vec<SampleRow> = (1..=4).map(|seq| sample(seq, at(seq))).collect();
    agent.store(&store, &samples).await?;
    compact(&store).await?;
    let before = stored(&client, agent.host).await?;
    assert_eq!(before.len(), 2);
    store.sql("TRUNCATE sample_chunks").await?;
    let late = [
        sample(5, after(hours_ago(4), 1)),
        sample(6, after(hours_ago(3), 2 * HOUR / 3)),
    ];
    agent.store(&store, &late).await?;
    assert_eq!(stored(&client, agent.host).await?, before, "on demand");
    assert_eq!(compact(&store).await?, 2);
    assert_eq!(stored(&client, agent.host).await?, before);
    Ok(())
}

#[tokio::test]
async fn parts_have_their_hourly_figures() -> Result<()> {
    let (store, agent) = world().await?;
    let used = |seq: i64, percent: i64| {
        let mut with = sample(seq, after(hours_ago(2), seq * 1000));
        with.disks = vec![disk("/", percent)];
        with
    };
    let samples = [used(1, 10), used(2, 40), used(3, 20)];
    agent.store(&store, &samples).await?;
    let figures = format!(
        "SELECT concat_ws(' ', name, value_min >> 30, value_max >> 30, value_avg >> 30, increase)
           FROM host_metric_parts_hourly WHERE host_id = '{}' AND kind = 'disk_used'",
        agent.host
    );
    let values = "SELECT string_agg((value >> 30)::text, ' ' ORDER BY sampled_at) FROM host_metric_parts WHERE kind = 'disk_used'";
    for when in ["on demand", "stored"] {
        assert_eq!(store.sql(&figures).await?, "/ 10 40 23", "{when}");
        assert_eq!(store.sql(values).await?, "10 40 20", "{when}");
        compact(&store).await?;
    }
    Ok(())
}
