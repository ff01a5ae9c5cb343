//! What JetStream adds to the contract: several processes, kills, and streams that an operator has
//! created.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream::{Config, DiscardPolicy, RetentionPolicy},
};
use svc_pipeline::queue::{BATCH, Batch, Queue, Receiver, SHARDS};
use svc_sandbox::{Nats, NatsOptions};
use svc_testkit::{PATIENCE, eventually};
use tokio::time::{Instant, timeout};

use super::{
    A_WHILE, METRICS, agent, open, parcel, settings, settle, small_stream, stream_of, take,
    unexpected,
};

const DEAD: &str = "SVC_INGEST_DEAD_LETTERS";

/// Consumers whose acknowledgement deadline is a second, as an operator might create them.
async fn short_ack_wait(nats: &Nats) -> Result<jetstream::Context> {
    let context = small_stream(nats, 1 << 20).await?;
    let stream = context.get_stream(METRICS).await?;
    for shard in 0..SHARDS {
        let consumer = pull::Config {
            durable_name: Some(format!("svc-ingest-{shard}")),
            filter_subject: format!("svc.ingest.metrics.{shard}"),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(1),
            ..pull::Config::default()
        };
        stream.create_consumer(consumer).await?;
    }
    Ok(context)
}

#[tokio::test]
async fn unsettled_deliveries_of_a_dead_consumer_go_to_another() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    short_ack_wait(&nats).await?;
    let dead = open(&nats).await?;
    for number in 1..=10 {
        dead.push(parcel(agent(number), 1, 1)).await;
    }
    let (mut receivers, mut came) = (dead.receivers(), BTreeSet::new());
    // On a slow machine some come again before the last one has come.
    while came.len() < 10 {
        let taken = take(&mut receivers, 1).await?;
        came.extend(taken.iter().map(|delivery| delivery.parcel.range.agent_id));
    }
    drop((dead, receivers));
    let alive = open(&nats).await?;
    let taken = take(&mut alive.receivers(), 10).await?;
    assert!(
        taken
            .iter()
            .all(|delivery| delivery.receipt.is_redelivered())
    );
    settle(taken).await;
    Ok(())
}

#[tokio::test]
async fn a_held_delivery_goes_to_no_other_consumer() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    short_ack_wait(&nats).await?;
    let queue = open(&nats).await?;
    queue.push(parcel(agent(1), 1, 1)).await;
    let taken = take(&mut queue.receivers(), 1).await?;
    let mut others = open(&nats).await?.receivers();
    for _ in 0..5 {
        taken[0].receipt.hold().await;
        assert_eq!(unexpected(&mut others[..1]).await, []);
    }
    settle(taken).await;
    Ok(())
}

#[tokio::test]
async fn several_consumers_share_a_shard_and_each_delivery_goes_to_one() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queues = [open(&nats).await?, open(&nats).await?];
    for number in 1..=50 {
        queues[0].push(parcel(agent(number), 1, 1)).await;
    }
    let few = Batch {
        ranges: 5,
        samples: 100,
    };
    let (mut seen, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    let mut receivers = queues.each_ref().map(Queue::receivers);
    while seen.len() < 50 {
        ensure!(Instant::now() < deadline, "{} came", seen.len());
        for receiver in receivers.iter_mut().flatten() {
            let batch = receiver.batch(few).await;
            seen.extend(batch.iter().map(|delivery| delivery.parcel.range.agent_id));
            settle(batch).await;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 50);
    Ok(())
}

#[tokio::test]
async fn no_pushed_parcel_is_lost_when_nats_is_killed_and_restarted() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    for seq in 1..=50 {
        queue.push(parcel(agent(1), seq, seq)).await;
    }
    nats.kill().await?;
    let later = tokio::spawn({
        let queue = queue.clone();
        async move {
            for seq in 51..=100 {
                queue.push(parcel(agent(1), seq, seq)).await;
            }
        }
    });
    tokio::time::sleep(A_WHILE).await;
    assert!(!later.is_finished(), "NATS is down");
    nats.start_again().await?;
    timeout(PATIENCE, later).await??;
    let taken = take(&mut queue.receivers(), 100).await?;
    let seqs: Vec<i64> = taken
        .iter()
        .map(|delivery| delivery.parcel.range.last_seq)
        .collect();
    assert_eq!(seqs, (1..=100).collect::<Vec<i64>>());
    settle(taken).await;
    Ok(())
}

/// The second half of the stream's file is lost, as in a loss of power. NATS gives the lost numbers to new messages, and
/// its consumer has delivered these numbers already.
#[tokio::test]
async fn reports_are_delivered_after_nats_has_lost_the_end_of_the_stream() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let mut receivers = queue.receivers();
    lose_the_end(&mut nats, &queue, &mut receivers).await?;
    let attempts = push_until_delivered(&queue, &mut receivers).await?;
    ensure!(attempts <= 3, "{attempts} attempts");
    Ok(())
}

/// All of 1000 reports but the first are settled when NATS loses the second half of them.
pub(super) async fn lose_the_end(
    nats: &mut Nats,
    queue: &Queue,
    receivers: &mut [Receiver],
) -> Result<()> {
    for seq in 1..=1000 {
        queue.push(parcel(agent(1), seq, seq)).await;
    }
    let mut taken = take(receivers, 1000).await?;
    // NATS cleans up below the first message that is not settled.
    let _first = taken.remove(0);
    settle(taken).await;
    // NATS writes the state of its consumers every second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    nats.kill().await?;
    halve_messages(nats)?;
    nats.start_again().await
}

/// Pushes the next report until it is delivered, and returns how often.
pub(super) async fn push_until_delivered(queue: &Queue, receivers: &mut [Receiver]) -> Result<i64> {
    let deadline = Instant::now() + PATIENCE;
    let mut report = parcel(agent(1), 1001, 1001);
    let mut ticket = queue.push(report.clone()).await;
    loop {
        ensure!(Instant::now() < deadline, "{ticket:?} was not delivered");
        for receiver in &mut *receivers {
            let batch = receiver.batch(BATCH).await;
            let came = batch.iter().any(|delivery| delivery.parcel == report);
            settle(batch).await;
            if came {
                return Ok(report.origin.epoch);
            }
        }
        // The service ends the heartbeat stream, and the agent sends the report over another one.
        if queue.gone(&[ticket]).await?.contains(&ticket) {
            report.origin.epoch += 1;
            ticket = queue.push(report.clone()).await;
        }
    }
}

/// Cuts the file of the stream's messages, and removes its indexes, which NATS makes again.
fn halve_messages(nats: &Nats) -> Result<()> {
    for file in std::fs::read_dir(stream_folder(nats).join("msgs"))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "blk") {
            let block = std::fs::File::options().write(true).open(path)?;
            block.set_len(block.metadata()?.len() / 2)?;
        } else {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The files of the messages are older than the consumer's state: it has passed messages that the stream still has.
#[tokio::test]
async fn reports_that_nats_would_skip_forever_are_delivered_again_or_dropped() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    short_ack_wait(&nats).await?;
    let queue = open(&nats).await?;
    let mut receivers = queue.receivers();
    let mut tickets = Vec::new();
    for seq in 1..=10 {
        tickets.push(queue.push(parcel(agent(1), seq, seq)).await);
    }
    nats.kill().await?;
    let messages = stream_folder(&nats).join("msgs");
    let older = tempfile::tempdir()?;
    copy_files(&messages, older.path())?;
    nats.start_again().await?;
    let mut taken = take(&mut receivers, 10).await?;
    // NATS cleans up below the first message that is not settled.
    drop(taken.remove(0));
    settle(taken).await;
    // NATS writes the state of its consumers every second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    nats.kill().await?;
    std::fs::remove_dir_all(&messages)?;
    std::fs::create_dir(&messages)?;
    copy_files(older.path(), &messages)?;
    nats.start_again().await?;
    settle(take(&mut receivers, 1).await?).await;
    ensure!(queue.depth().await?.ranges >= 8, "the others are skipped");
    let deadline = Instant::now() + PATIENCE;
    while queue.depth().await?.ranges > 0 {
        ensure!(Instant::now() < deadline, "{:?}", queue.depth().await?);
        for receiver in &mut receivers {
            settle(receiver.batch(BATCH).await).await;
        }
    }
    ensure!(queue.gone(&tickets).await?.len() == tickets.len());
    queue.push(parcel(agent(1), 11, 11)).await;
    take(&mut receivers, 1).await?;
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

fn stream_folder(nats: &Nats) -> PathBuf {
    nats.data_dir().join("jetstream/$G/streams").join(METRICS)
}

/// Reports of every size, in a stream that holds 4 KiB.
#[tokio::test]
async fn the_size_of_the_stream_bounds_reports_of_every_size() -> Result<()> {
    for samples in [1, 3, 10, 40, 400] {
        let nats = Nats::start(NatsOptions::default()).await?;
        small_stream(&nats, 4096).await?;
        let queue = open(&nats).await?;
        let mut pushed = 0;
        while pushed < 100 {
            let report = parcel(agent(1), pushed * samples + 1, (pushed + 1) * samples);
            if timeout(A_WHILE, queue.push(report)).await.is_err() {
                break;
            }
            pushed += 1;
        }
        let depth = queue.depth().await?;
        ensure!(
            pushed < 100 && depth.bytes <= 4096,
            "{pushed} reports of {samples} samples: {depth:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_parcel_pushed_twice_is_deduplicated_within_one_epoch() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let once = parcel(agent(1), 1, 5);
    let mut resent = once.clone();
    resent.origin.epoch = 2;
    let tickets = [
        queue.push(once.clone()).await,
        queue.push(once).await,
        queue.push(resent).await,
    ];
    assert_eq!(tickets[0], tickets[1]);
    assert_ne!(tickets[0], tickets[2]);
    let mut receivers = queue.receivers();
    settle(take(&mut receivers, 2).await?).await;
    assert_eq!(unexpected(&mut receivers).await, []);
    Ok(())
}

#[tokio::test]
async fn a_stream_with_other_settings_is_an_error_and_stays_unchanged() -> Result<()> {
    for (change, named) in [
        (
            (|config: &mut Config| config.discard = DiscardPolicy::Old) as fn(&mut Config),
            "discard policy is Old and must be New",
        ),
        (
            |config| config.retention = RetentionPolicy::WorkQueue,
            "retention is WorkQueue and must be Interest",
        ),
        (
            |config| config.storage = jetstream::stream::StorageType::Memory,
            "storage is Memory and must be File",
        ),
        (|config| config.max_bytes = -1, "max_bytes is unlimited"),
        (
            |config| config.subjects = vec!["svc.ingest.metrics.1".into()],
            "list of subjects",
        ),
    ] {
        let nats = Nats::start(NatsOptions::default()).await?;
        let context = jetstream::new(async_nats::connect(nats.url()).await?);
        let mut config = stream_of(1 << 20);
        change(&mut config);
        context.create_stream(config.clone()).await?;
        let error = open(&nats).await.expect_err(named);
        assert!(format!("{error:#}").contains(named), "{error:#}");
        let after = context
            .get_stream(METRICS)
            .await?
            .cached_info()
            .config
            .clone();
        assert_eq!(
            (after.discard, after.retention, after.max_bytes),
            (config.discard, config.retention, config.max_bytes)
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_undecodable_message_becomes_a_dead_letter() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let context = jetstream::new(async_nats::connect(nats.url()).await?);
    context
        .publish("svc.ingest.metrics.0", "not a protobuf".into())
        .await?
        .await?;
    let mut receivers = queue.receivers();
    eventually("it is buried", async || {
        drop(receivers[0].batch(BATCH).await);
        let dead = context.get_stream(DEAD).await;
        let depth = queue.depth().await;
        dead.is_ok_and(|dead| dead.cached_info().state.messages == 1)
            && depth.is_ok_and(|depth| depth.ranges == 0)
    })
    .await?;
    let dead = context.get_stream(DEAD).await?;
    let letter = dead.get_raw_message(1).await?;
    assert_eq!(letter.payload, "not a protobuf");
    assert!(letter.headers.get("Svc-Ingest-Reason").is_some());
    Ok(())
}

#[tokio::test]
async fn opening_the_queue_waits_for_nats() -> Result<()> {
    let port = svc_sandbox::free_port()?;
    let settings = settings(&format!("nats://127.0.0.1:{port}"))?;
    let opening = tokio::spawn(async move { Queue::open(&settings).await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!opening.is_finished());
    let options = NatsOptions {
        port: Some(port),
        ..NatsOptions::default()
    };
    let _nats = Nats::start(options).await?;
    timeout(PATIENCE, opening).await???;
    Ok(())
}
