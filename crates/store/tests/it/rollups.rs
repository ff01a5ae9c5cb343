//! Rollups equal a computation from all samples, whatever the order of deliveries.

use anyhow::Result;
use jiff::Timestamp;
use proptest::prelude::*;
use svc_store::{Range, SampleRow};
use tokio::time::timeout;

use crate::{
    fixtures::{TestAgent, after, disk, hours_ago, roll_up, sample, world},
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
    rolls_up: bool,
}

prop_compose! {
    /// A sample within six hours, with counters that grow, stall or restart at 0, and with
    /// disks that come and go.
    fn any_sample()(
        at in 0..6 * HOUR,
        cpu in 0.0..100.0_f64,
        load in prop_oneof![9 => 0.0..50.0_f64, 1 => Just(f64::MAX)],
        memory in 0..1_i64 << 40,
        counters in prop_oneof![8 => (0..1_i64 << 40, 0..1_i64 << 30), 1 => Just((i64::MAX, 0)), 1 => Just((0, i64::MAX))],
        processes in 0..1_000_i64,
        disks in prop::collection::vec(("/[a-c]", 0..110_i64, prop::bool::weighted(0.9)), 0..3),
    ) -> SampleRow {
        let mut any = sample(0, after(hours_ago(8), at));
        any.cpu_percent = cpu;
        any.load = [load, load / 2.0, 1.0];
        any.memory_used_bytes = memory;
        any.swap_used_bytes = memory / 7;
        (any.network_rx_bytes, any.network_tx_bytes) = counters;
        any.process_count = processes;
        any.disks = disks.iter().map(|(name, percent, sized)| {
            let mut disk = disk(name, *percent);
            disk.total_bytes *= i64::from(*sized);
            disk
        }).collect();
        any
    }
}

prop_compose! {
    fn any_delivery()(first in 0..40_usize, length in 1..15_usize, rolls_up in prop::bool::weighted(0.2)) -> Delivery {
        Delivery { first, length, rolls_up }
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
        deliveries.push(Delivery { first: 0, length: samples.len(), rolls_up: true });
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
            if delivery.rolls_up {
                roll_up(store).await?;
            }
        }
        let stored = stored(&store.connect().await?, agent.host).await?;
        compare(&expected(&self.samples), &stored)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rollups_are_exact_after_duplicates_reordering_late_samples_and_resets() -> Result<()> {
    let (store, _) = world().await?;
    let play = async move |story: Story| story.play(&store).await;
    property(64, any_story(), play).await
}

#[tokio::test]
async fn a_late_sample_changes_its_hour_and_the_increase_of_the_next() -> Result<()> {
    let (store, agent) = world().await?;
    let received = |seq, at: Timestamp, rx| SampleRow {
        network_rx_bytes: rx,
        ..sample(seq, at)
    };
    let (first, second) = (hours_ago(3), hours_ago(2));
    let increases = "SELECT string_agg(concat(network_rx_bytes_increase, '/', sample_count), ' ' ORDER BY hour) FROM host_metrics_hourly";
    let samples = [
        received(1, first, 100),
        received(2, after(second, 1), 500),
        received(3, after(second, 2), 600),
    ];
    agent.store(&store, &samples).await?;
    let computed = roll_up(&store).await?;
    assert_eq!(computed, 3, "two changed hours and the one after them");
    assert_eq!(store.sql(increases).await?, "0/1 500/2");
    let late = received(4, after(second, -1), 450);
    agent.store(&store, &[late]).await?;
    roll_up(&store).await?;
    assert_eq!(store.sql(increases).await?, "350/2 150/2");
    let reset = received(5, after(second, 3), 40);
    agent.store(&store, &[reset]).await?;
    roll_up(&store).await?;
    assert_eq!(store.sql(increases).await?, "350/2 190/3");
    Ok(())
}

#[tokio::test]
async fn an_unchanged_hour_is_not_computed_again() -> Result<()> {
    let (store, agent) = world().await?;
    let samples = [sample(1, hours_ago(5))];
    agent.store(&store, &samples).await?;
    assert_eq!(roll_up(&store).await?, 2);
    assert_eq!(roll_up(&store).await?, 0);
    agent.store(&store, &samples).await?;
    assert_eq!(roll_up(&store).await?, 0, "a duplicate changes nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_commits_during_a_rollup_is_not_lost() -> Result<()> {
    const SAMPLES: i64 = 150;
    let (store, agent) = world().await?;
    let client = store.connect().await?;
    let numbered = |seq: i64| sample(seq, after(hours_ago(4), seq * HOUR / 60));
    let last_at = numbered(SAMPLES).sampled_at.as_microsecond() as f64;
    let storing = async {
        for seq in 1..=SAMPLES {
            agent.store(&store, &[numbered(seq)]).await?;
        }
        anyhow::Ok(())
    };
    let rolling = async {
        loop {
            let hours = stored(&client, agent.host).await?;
            if hours
                .values()
                .any(|hour| hour.numbers["last_at"] >= last_at)
            {
                return anyhow::Ok(());
            }
            roll_up(&store).await?;
        }
    };
    let sibling = async {
        for _ in 0..50 {
            roll_up(&store).await?;
        }
        anyhow::Ok(())
    };
    let race = async { tokio::try_join!(storing, rolling, sibling) };
    timeout(PATIENCE * 4, race).await??;
    roll_up(&store).await?;
    let samples: Vec<SampleRow> = (1..=SAMPLES).map(numbered).collect();
    compare(&expected(&samples), &stored(&client, agent.host).await?)
}

#[tokio::test]
async fn a_rollup_is_kept_after_its_samples_are_dropped() -> Result<()> {
    let (store, agent) = world().await?;
    let client = store.connect().await?;
    let at = |seq: i64| after(hours_ago(4), seq * HOUR / 3);
    let samples: Vec<SampleRow> = (1..=4).map(|seq| sample(seq, at(seq))).collect();
    agent.store(&store, &samples).await?;
    roll_up(&store).await?;
    let before = stored(&client, agent.host).await?;
    assert_eq!(before.len(), 2);
    store.sql("TRUNCATE host_metrics").await?;
    let late = [
        sample(5, after(hours_ago(4), 1)),
        sample(6, after(hours_ago(3), 2 * HOUR / 3)),
    ];
    agent.store(&store, &late).await?;
    assert!(roll_up(&store).await? >= 2, "both hours are recomputed");
    assert_eq!(stored(&client, agent.host).await?, before);
    Ok(())
}
