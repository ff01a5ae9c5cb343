//! The contract of the metrics queue, tested over both kinds. [`jetstream`] tests what JetStream
//! adds, [`access`] its authentication, [`payload_limit`] its largest message, and [`other_readers`] what others get who read its stream.

mod access;
mod jetstream;
mod other_readers;
mod payload_limit;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use jiff::Timestamp;
use svc_ingest::config::queue_settings;
use svc_pipeline::queue::{
    BATCH, Batch, Bounds, Delivery, InProcess, Origin, Parcel, Queue, QueueSettings, Receiver,
    SHARDS, shard_of,
};
use svc_sandbox::{Nats, NatsOptions};
use svc_store::{AgentId, HostId};
use svc_testkit::{Environment, PATIENCE, eventually, range};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

const METRICS: &str = "SVC_INGEST_METRICS";
/// A stream of no instance.
pub const ORIGIN: Origin = Origin {
    epoch: 1,
    instance: Uuid::nil(),
};
/// Long enough to see an unwanted delivery.
const A_WHILE: Duration = Duration::from_millis(500);

/// A queue and its server.
struct TestQueue {
    kind: &'static str,
    queue: Queue,
    _nats: Option<Nats>,
}

/// Both kinds of queue, with default bounds.
async fn both() -> Result<[TestQueue; 2]> {
    let nats = Nats::start(NatsOptions::default()).await?;
    Ok([
        TestQueue {
            kind: "in process",
            queue: Queue::InProcess(InProcess::new(Bounds::default())),
            _nats: None,
        },
        TestQueue {
            kind: "JetStream",
            queue: open(&nats).await?,
            _nats: Some(nats),
        },
    ])
}

fn settings(url: &str) -> Result<QueueSettings> {
    let environment = Environment::default().set("INGEST_QUEUE_URL", url);
    Ok(QueueSettings {
        skip_check: Duration::from_secs(1),
        ..queue_settings(&|name| environment.get(name))?
    })
}

async fn open(nats: &Nats) -> Result<Queue> {
    let settings = settings(&nats.url())?;
    let opening = Queue::open(&settings);
    Ok(timeout(PATIENCE, opening)
        .await
        .context("it does not open")??)
}

fn agent(number: u128) -> AgentId {
    AgentId(Uuid::from_u128(number))
}

fn parcel(agent_id: AgentId, first_seq: i64, last_seq: i64) -> Parcel {
    let mut range = range((agent_id, HostId(Uuid::nil())), first_seq, last_seq);
    for sample in &mut range.samples {
        sample.sampled_at = Timestamp::UNIX_EPOCH;
    }
    Parcel {
        range,
        origin: ORIGIN,
    }
}

/// Takes `count` deliveries from all shards.
async fn take(receivers: &mut [Receiver], count: usize) -> Result<Vec<Delivery>> {
    let mut taken = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while taken.len() < count {
        ensure!(Instant::now() < deadline, "{} of {count} came", taken.len());
        for receiver in &mut *receivers {
            taken.extend(receiver.batch(BATCH).await);
        }
    }
    Ok(taken)
}

async fn settle(deliveries: Vec<Delivery>) {
    for delivery in deliveries {
        delivery.receipt.settle().await;
    }
}

/// Deliveries that should not arrive.
async fn unexpected(receivers: &mut [Receiver]) -> Vec<Parcel> {
    let mut unexpected = Vec::new();
    let deadline = Instant::now() + A_WHILE;
    while Instant::now() < deadline {
        for receiver in &mut *receivers {
            let batch = receiver.batch(BATCH).await;
            unexpected.extend(batch.into_iter().map(|delivery| delivery.parcel));
        }
    }
    unexpected
}

#[tokio::test]
async fn the_ranges_of_an_agent_arrive_unchanged_and_in_order() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=20 {
            for number in 1..=5 {
                rig.queue.push(parcel(agent(number), seq, seq)).await;
            }
        }
        let mut receivers = rig.queue.receivers();
        assert_eq!(receivers.len(), SHARDS);
        let taken = take(&mut receivers, 100).await?;
        let mut seen: BTreeMap<AgentId, Vec<i64>> = BTreeMap::new();
        for delivery in &taken {
            let range = &delivery.parcel.range;
            assert_eq!(
                delivery.parcel,
                parcel(range.agent_id, range.first_seq, range.last_seq)
            );
            seen.entry(range.agent_id).or_default().push(range.last_seq);
        }
        let in_order: Vec<i64> = (1..=20).collect();
        assert_eq!(seen.len(), 5, "{}", rig.kind);
        assert!(
            seen.values().all(|seqs| *seqs == in_order),
            "{}: {seen:?}",
            rig.kind
        );
        settle(taken).await;
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_has_one_shard_and_all_shards_are_used() {
    let shards: Vec<usize> = (0..256).map(|number| shard_of(agent(number))).collect();
    assert!((0..SHARDS).all(|shard| shards.contains(&shard)));
    assert_eq!(shard_of(agent(7)), shard_of(agent(7)));
}

#[tokio::test]
async fn a_delivery_put_back_is_delivered_again_and_a_settled_one_never() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=3 {
            rig.queue.push(parcel(agent(1), seq, seq)).await;
        }
        let mut receivers = rig.queue.receivers();
        for round in 0..3 {
            let taken = take(&mut receivers, 3 - round).await?;
            for (index, Delivery { parcel, receipt }) in taken.into_iter().enumerate() {
                assert_eq!(receipt.is_redelivered(), round > 0, "{}", rig.kind);
                match index {
                    0 => receipt.settle().await,
                    _ => receipt.put_back(parcel).await,
                }
            }
        }
        assert_eq!(unexpected(&mut receivers).await, [], "{}", rig.kind);
    }
    Ok(())
}

#[tokio::test]
async fn a_ticket_is_pending_until_its_parcel_is_settled() -> Result<()> {
    for rig in both().await? {
        let first = rig.queue.push(parcel(agent(1), 1, 1)).await;
        let second = rig.queue.push(parcel(agent(1), 2, 2)).await;
        let mut receivers = rig.queue.receivers();
        let mut taken = take(&mut receivers, 2).await?;
        let gone = rig.queue.gone(&[first, second]).await?;
        assert!(gone.is_empty(), "{}", rig.kind);
        taken.remove(0).receipt.settle().await;
        eventually("the first is settled", async || {
            let gone = rig.queue.gone(&[first, second]).await;
            gone.is_ok_and(|gone| gone.contains(&first) && !gone.contains(&second))
        })
        .await?;
        settle(taken).await;
        eventually("both are settled", async || {
            let gone = rig.queue.gone(&[first, second]).await;
            let depth = rig.queue.depth().await;
            gone.is_ok_and(|gone| gone.len() == 2)
                && depth.is_ok_and(|depth| {
                    depth.ranges == 0 && depth.lag == 0 && depth.oldest.is_zero()
                })
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_depth_counts_everything_that_is_not_settled() -> Result<()> {
    for rig in both().await? {
        for number in 1..=4 {
            rig.queue.push(parcel(agent(number), 1, 10)).await;
        }
        let mut receivers = rig.queue.receivers();
        let taken = take(&mut receivers, 4).await?;
        let depth = rig.queue.depth().await?;
        assert_eq!((depth.ranges, depth.lag), (4, 4), "{}", rig.kind);
        assert!(
            depth.bytes > 0 && !depth.oldest.is_zero(),
            "{}: {depth:?}",
            rig.kind
        );
        assert!(
            depth.samples.is_none_or(|samples| samples == 40),
            "{depth:?}"
        );
        settle(taken).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_batch_is_bounded() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=20 {
            rig.queue.push(parcel(agent(1), seq, seq)).await;
        }
        let few = Batch {
            ranges: 5,
            samples: 100,
        };
        let receiver = &mut rig.queue.receivers()[shard_of(agent(1))];
        let taken = receiver.batch(few).await;
        assert!(
            (1..=5).contains(&taken.len()),
            "{}: {}",
            rig.kind,
            taken.len()
        );
        settle(taken).await;
    }
    Ok(())
}

/// The stream with this size, as an operator might create it.
fn stream_of(max_bytes: i64) -> Config {
    Config {
        name: METRICS.into(),
        subjects: vec!["svc.ingest.metrics.*".into()],
        retention: RetentionPolicy::Interest,
        discard: DiscardPolicy::New,
        max_bytes,
        ..Config::default()
    }
}

async fn small_stream(nats: &Nats, max_bytes: i64) -> Result<async_nats::jetstream::Context> {
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await?);
    context.create_stream(stream_of(max_bytes)).await?;
    Ok(context)
}

#[tokio::test]
async fn a_push_into_a_full_queue_waits_for_room() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    small_stream(&nats, 4096).await?;
    let few = Bounds {
        samples: 20,
        ..Bounds::default()
    };
    let little = Bounds {
        bytes: 4096,
        ..Bounds::default()
    };
    for (kind, queue) in [
        ("samples", Queue::InProcess(InProcess::new(few))),
        ("bytes", Queue::InProcess(InProcess::new(little))),
        ("JetStream", open(&nats).await?),
    ] {
        let mut pushed = 0;
        while timeout(
            A_WHILE,
            queue.push(parcel(agent(1), pushed + 1, pushed + 1)),
        )
        .await
        .is_ok()
        {
            pushed += 1;
            ensure!(pushed < 100, "{kind} is not bounded");
        }
        assert!(pushed > 0, "{kind}");
        let mut receivers = queue.receivers();
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.push(parcel(agent(1), 1000, 1000)).await }
        });
        tokio::time::sleep(A_WHILE).await;
        assert!(!waiting.is_finished(), "{kind}");
        settle(take(&mut receivers, usize::try_from(pushed)?).await?).await;
        timeout(PATIENCE, waiting).await.context(kind)??;
        let last = &take(&mut receivers, 1).await?[0];
        assert_eq!(last.parcel.range.last_seq, 1000, "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_parcel_larger_than_the_queue_is_still_accepted() -> Result<()> {
    let tiny = Bounds {
        samples: 2,
        bytes: 10,
    };
    let queue = Queue::InProcess(InProcess::new(tiny));
    timeout(PATIENCE, queue.push(parcel(agent(1), 1, 10))).await?;
    assert_eq!(take(&mut queue.receivers(), 1).await?.len(), 1);
    Ok(())
}
