//! Rollups: always what a computation from the samples would give, however these came.

use std::collections::BTreeMap;

use anyhow::Result;
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use svc_store::{Range, RollupStep, SampleRow, Store};

use crate::rollup_oracle::{compare, expected, stored};
use crate::support::{batch, migrated, text};
use crate::telling::{DAY, Teller, after, disk, hours_ago, sample, teller};

const HOUR: i64 = 3_600_000;

/// As the service does it; how many hours were computed.
async fn roll_up(store: &Store) -> Result<i64> {
    while store.rollups_gather().await?.more {}
    let mut computed = 0;
    loop {
        let RollupStep { taken, more } = store.rollups_compute().await?;
        computed += taken;
        if !more {
            return Ok(computed);
        }
    }
}

/// One agent's samples in the order of their numbers, which is not that of their times,
/// and how they are delivered: pieces of them, again and again, in any order.
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
    /// Anywhere in six hours; counters that grow, stand still, or begin anew; disks that come and go.
    fn told()(
        at in 0..6 * HOUR,
        cpu in 0.0..100.0_f64,
        load in prop_oneof![9 => 0.0..50.0_f64, 1 => Just(f64::MAX)],
        memory in 0..1_i64 << 40,
        counters in prop_oneof![8 => (0..1_i64 << 40, 0..1_i64 << 30), 1 => Just((i64::MAX, 0)), 1 => Just((0, i64::MAX))],
        processes in 0..1_000_i64,
        disks in prop::collection::vec(("/[a-c]", 0..110_i64, prop::bool::weighted(0.9)), 0..3),
    ) -> SampleRow {
        let mut told = sample(0, after(hours_ago(8), at));
        told.cpu_percent = cpu;
        told.load = [load, load / 2.0, 1.0];
        told.memory_used_bytes = memory;
        told.swap_used_bytes = memory / 7;
        (told.network_rx_bytes, told.network_tx_bytes) = counters;
        told.process_count = processes;
        told.disks = disks.iter().map(|(name, percent, sized)| {
            let mut disk = disk(name, *percent);
            disk.total_bytes *= i64::from(*sized);
            disk
        }).collect();
        told
    }
}

fn story() -> impl Strategy<Value = Story> {
    let delivery = (0..40_usize, 1..15_usize, prop::bool::weighted(0.2));
    let samples = prop::collection::vec(told(), 1..40);
    (samples, prop::collection::vec(delivery, 0..12)).prop_map(|(mut samples, deliveries)| {
        for (sample, seq) in samples.iter_mut().zip(1..) {
            sample.seq = seq;
        }
        let all = Delivery {
            first: 0,
            length: samples.len(),
            rolls_up: true,
        };
        let some = deliveries
            .iter()
            .map(|&(first, length, rolls_up)| Delivery {
                first,
                length,
                rolls_up,
            });
        Story {
            deliveries: some.chain([all]).collect(),
            samples,
        }
    })
}

impl Story {
    fn piece(&self, teller: &Teller, delivery: Delivery) -> Option<Range> {
        let rest = self.samples.get(delivery.first..)?;
        let piece = &rest[..rest.len().min(delivery.length)];
        (!piece.is_empty()).then(|| teller.range(piece, &[]))
    }

    /// Plays it for a host of its own, and compares.
    async fn play(&self, store: &Store) -> Result<()> {
        let teller = teller(store).await?;
        for delivery in &self.deliveries {
            if let Some(range) = self.piece(&teller, *delivery) {
                store.samples_append(&[range]).await?;
            }
            if delivery.rolls_up {
                roll_up(store).await?;
            }
        }
        compare(&expected(&self.samples), &stored(store, teller.host).await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rollups_equal_a_recomputation_after_duplicates_reordering_late_samples_and_resets()
-> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let here = tokio::runtime::Handle::current();
    let outcome = tokio::task::spawn_blocking(move || {
        let config = Config {
            cases: 64,
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config).run(&story(), |story| {
            let played = here.block_on(story.play(&store));
            played.map_err(|wrong| TestCaseError::fail(format!("{wrong:#}")))
        })
    });
    Ok(outcome.await??)
}

#[tokio::test]
async fn a_late_sample_changes_its_hour_and_the_next_ones_increase() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let told = |seq, at: Timestamp, rx| SampleRow {
        network_rx_bytes: rx,
        ..sample(seq, at)
    };
    let (two, three) = (hours_ago(3), hours_ago(2));
    let increases = "SELECT string_agg(concat(network_rx_bytes_increase, '/', sample_count), ' ' ORDER BY hour) FROM host_metrics_hourly";
    store
        .samples_append(&[teller.range(
            &[
                told(1, two, 100),
                told(2, after(three, 1), 500),
                told(3, after(three, 2), 600),
            ],
            &[],
        )])
        .await?;
    assert_eq!(
        roll_up(&store).await?,
        3,
        "two hours that changed, and the one after them"
    );
    assert_eq!(text(&store, increases).await?, "0/1 500/2");
    store
        .samples_append(&[teller.range(&[told(4, after(three, -1), 450)], &[])])
        .await?;
    roll_up(&store).await?;
    assert_eq!(text(&store, increases).await?, "350/2 150/2", "from 450 on");
    store
        .samples_append(&[teller.range(&[told(5, after(three, 3), 40)], &[])])
        .await?;
    roll_up(&store).await?;
    assert_eq!(
        text(&store, increases).await?,
        "350/2 190/3",
        "begun anew at 0"
    );
    Ok(())
}

#[tokio::test]
async fn nothing_is_computed_again_that_did_not_change() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let range = teller.range(&[sample(1, hours_ago(5))], &[]);
    store.samples_append(std::slice::from_ref(&range)).await?;
    assert_eq!(roll_up(&store).await?, 2);
    assert_eq!(roll_up(&store).await?, 0);
    store.samples_append(&[range]).await?;
    assert_eq!(roll_up(&store).await?, 0, "a duplicate changes nothing");
    Ok(())
}

/// Samples commit while rollups run: what a rollup did not see it computes in the next round.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_commits_while_a_rollup_runs_is_not_lost() -> Result<()> {
    const SAMPLES: i64 = 150;
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let told = |seq: i64| sample(seq, after(hours_ago(4), seq * HOUR / 60));
    let telling = async {
        for seq in 1..=SAMPLES {
            store
                .samples_append(&[teller.range(&[told(seq)], &[])])
                .await?;
        }
        anyhow::Ok(())
    };
    let rolling =
        async {
            let mut rounds = BTreeMap::new();
            while !stored(&store, teller.host).await?.values().any(|hour| {
                hour.numbers["last_at"] >= told(SAMPLES).sampled_at.as_microsecond() as f64
            }) {
                *rounds.entry(roll_up(&store).await? > 0).or_insert(0) += 1;
            }
            anyhow::Ok(rounds)
        };
    let racing = tokio::time::timeout(crate::support::PATIENCE * 4, async {
        tokio::try_join!(telling, rolling, rolling_too(&store))
    });
    racing.await??;
    roll_up(&store).await?;
    let samples: Vec<SampleRow> = (1..=SAMPLES).map(told).collect();
    compare(&expected(&samples), &stored(&store, teller.host).await?)
}

/// A sibling that rolls up at the same time, for a while.
async fn rolling_too(store: &Store) -> Result<()> {
    for _ in 0..50 {
        roll_up(store).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_hour_whose_history_was_dropped_stays_as_it_was() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let told: Vec<SampleRow> = (1..=4)
        .map(|seq| sample(seq, after(hours_ago(4), seq * HOUR / 3)))
        .collect();
    store.samples_append(&[teller.range(&told, &[])]).await?;
    roll_up(&store).await?;
    let before = stored(&store, teller.host).await?;
    assert_eq!(before.len(), 2);
    batch(&store, "TRUNCATE host_metrics").await?;
    let late = [
        sample(5, after(hours_ago(4), 1)),
        sample(6, after(hours_ago(3), 2 * HOUR / 3)),
    ];
    store.samples_append(&[teller.range(&late, &[])]).await?;
    assert!(roll_up(&store).await? >= 2, "both hours were looked at");
    assert_eq!(stored(&store, teller.host).await?, before);
    Ok(())
}
