//! `make bench-pipeline`: durable samples a second, side by side in one run.
//!
//! (a) a bare loop of the same SQL, two connections, the same batches; (b) the
//! consumer's own path, from the queue to the commit, over either queue; (c) whole
//! heartbeats, one sample each, from many agents' streams over mutual TLS to the
//! commit and back to their acknowledgement. Everything runs on this machine, the
//! agents included. It fails when (b) in process is below 60 % of (a), or (c) below
//! 10,000 a second.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and may fail as loudly as a test"
)]

#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/agents.rs"]
mod agents;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/beats.rs"]
mod beats;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/fleet.rs"]
mod fleet;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/plant.rs"]
mod plant;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use svc_ingest::{
    config::queue_settings,
    consumer::{Acks, Consumer},
    queue::{BATCH, Origin, Parcel, Queue, SHARDS, shard_of},
    session::SessionTable,
    telemetry::PipelineMetrics,
};
use svc_sandbox::PostgresOptions;
use svc_store::{AgentId, DatabaseUrl, HostId, Range, Store, StoreOptions};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use agents::{AUTO, FakeAgent, TokenRules, machine, token};
use beats::{Beat, sample};
use harness::{Environment, Site, raise_file_limit};
use plant::{Kind, Plant, metric, range, seed};

/// Agents of (a) and (b), and how many samples each sends.
const AGENTS: usize = 8000;
const EACH: i64 = 15;
/// Streams of (c), and how many heartbeats each sends, within what an agent may send at once.
const STREAMS: u32 = 2000;
const HEARTBEATS: u64 = 20;
const LEAST_RATIO: f64 = 0.6;
const LEAST_HEARTBEATS: f64 = 10_000.0;

#[tokio::main]
async fn main() -> Result<()> {
    raise_file_limit();
    let bare = bare_loop().await?;
    println!("(a) bare loop of the same SQL: {bare:.0} samples/s");
    let memory = consumer(Kind::Memory).await?;
    let ratio = memory / bare;
    println!(
        "(b) the consumer, memory: {memory:.0} samples/s, {:.0} % of (a)",
        ratio * 100.0
    );
    let nats = consumer(Kind::Nats).await?;
    println!(
        "(b) the consumer, JetStream: {nats:.0} samples/s, {:.0} % of (a)",
        nats / bare * 100.0
    );
    let whole = streams(Kind::Memory).await?;
    println!("(c) acknowledged heartbeats, memory: {whole:.0}/s over {STREAMS} streams");
    let over_nats = streams(Kind::Nats).await?;
    println!("(c) acknowledged heartbeats, JetStream: {over_nats:.0}/s over {STREAMS} streams");
    ensure!(ratio >= LEAST_RATIO, "(b) is {ratio:.2} of (a)");
    ensure!(whole >= LEAST_HEARTBEATS, "(c) is {whole:.0}/s");
    Ok(())
}

/// A server that syncs to disk, as one in production does.
async fn plant(kind: Kind) -> Result<Plant> {
    let options = PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    };
    Plant::on(Site::with_server(options).await?, kind).await
}

async fn store(site: &Site) -> Result<Store> {
    let url = DatabaseUrl::parse(&site.database_url())?;
    let store = Store::new(url, StoreOptions::default())?;
    store.partitions_create(Duration::from_hours(24)).await?;
    Ok(store)
}

/// The ranges of each shard in the order of their numbers, a sample each.
fn ranges(agents: &[(AgentId, HostId)]) -> [Vec<Range>; SHARDS] {
    let mut shards: [Vec<Range>; SHARDS] = Default::default();
    for seq in 1..=EACH {
        for agent in agents {
            shards[shard_of(agent.0)].push(range(*agent, seq, seq));
        }
    }
    shards
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

async fn bare_loop() -> Result<f64> {
    let plant = plant(Kind::Memory).await?;
    let agents = seed(&plant.site, AGENTS).await?;
    let (store, shards) = (store(&plant.site).await?, ranges(&agents));
    let count = shards.iter().map(Vec::len).sum();
    let began = Instant::now();
    try_join_all(shards.into_iter().map(|ranges| {
        let store = store.clone();
        async move {
            let writer = tokio::spawn(async move {
                for batch in ranges.chunks(BATCH.ranges) {
                    store.samples_append(batch).await?;
                }
                anyhow::Ok(())
            });
            writer.await?
        }
    }))
    .await?;
    let reached = rate(count, began);
    all_stored(&plant.site, count).await?;
    Ok(reached)
}

async fn consumer(kind: Kind) -> Result<f64> {
    let plant = plant(kind).await?;
    let agents = seed(&plant.site, AGENTS).await?;
    let store = store(&plant.site).await?;
    let environment = Environment::default().set("INGEST_QUEUE_URL", plant.queue_url());
    let settings = queue_settings(&|name| environment.get(name))?;
    let queue = Queue::open(&settings).await?;
    let shards = ranges(&agents);
    let count: usize = shards.iter().map(Vec::len).sum();
    let (sessions, stop) = (Arc::new(SessionTable::default()), CancellationToken::new());
    let acks = || Acks::for_queue(&queue, &sessions);
    let began = Instant::now();
    for consumer in Consumer::for_all_shards(&queue, &store, acks, &PipelineMetrics::default()) {
        tokio::spawn(consumer.run(stop.clone()));
    }
    // As many at once as streams would be; an agent's own stay in order.
    try_join_all(shards.into_iter().map(|ranges| push(queue.clone(), ranges))).await?;
    while queue.depth().await?.ranges > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reached = rate(count, began);
    stop.cancel();
    all_stored(&plant.site, count).await?;
    Ok(reached)
}

async fn push(queue: Queue, ranges: Vec<Range>) -> Result<()> {
    let origin = Origin {
        epoch: 1,
        instance: Uuid::nil(),
    };
    let pushes = stream::iter(ranges).map(|range| queue.push(Parcel { range, origin }));
    pushes.buffered(500).for_each(async |_| ()).await;
    Ok(())
}

async fn streams(kind: Kind) -> Result<f64> {
    let plant = plant(kind).await?;
    let server = plant.process().start().await?;
    let rules = TokenRules {
        max_uses: 100_000,
        ..AUTO
    };
    let secret = token(&plant.site, rules).await?;
    let beats: Vec<Beat> = stream::iter(0..STREAMS)
        .map(|number| {
            let (secret, address) = (secret.clone(), server.grpc);
            async move {
                let agent = FakeAgent::on(machine(number))?;
                let jwt = agent.jwt(address, &secret).await?;
                agent.beat(address, &jwt).await
            }
        })
        .buffer_unordered(32)
        .try_collect()
        .await?;
    let before = appends(&server).await?;
    let began = Instant::now();
    let sending = beats.into_iter().map(|beat| tokio::spawn(send(beat)));
    let beats = try_join_all(sending).await?;
    let count = STREAMS as usize * HEARTBEATS as usize;
    let reached = rate(count, began);
    let transactions = appends(&server).await? - before;
    println!(
        "    {:.1} transactions for 1,000 heartbeats",
        transactions / count as f64 * 1000.0
    );
    drop(beats);
    all_stored(&plant.site, count).await?;
    Ok(reached)
}

/// One sample after the other, two of them on their way at any time.
async fn send(mut beat: Beat) -> Result<Beat> {
    let mut acked = 0;
    for seq in 1..=HEARTBEATS {
        while seq > acked + 2 {
            acked = beat.ack().await?.up_to_seq;
        }
        beat.report(vec![sample(seq)], vec![]).await?;
    }
    if acked < HEARTBEATS {
        beat.acked(HEARTBEATS).await?;
    }
    Ok(beat)
}

async fn appends(server: &harness::Process) -> Result<f64> {
    metric(server.http, "commit_seconds_count").await
}

async fn all_stored(site: &Site, count: usize) -> Result<()> {
    let stored = site.psql("SELECT count(*) FROM host_metrics").await?;
    let stored: usize = stored.parse().context("a count")?;
    ensure!(stored == count, "{stored} of {count} are stored");
    Ok(())
}
