//! Other readers of the stream: whatever the service does to its stream, they get what they have not read yet.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use async_nats::jetstream::{
    self,
    consumer::{PullConsumer, pull},
    stream::{Config, External, Source},
};
use futures_util::StreamExt;
use svc_pipeline::queue::{BATCH, Queue, Receiver};
use svc_sandbox::{Nats, NatsOptions, free_port};
use svc_testkit::{PATIENCE, eventually};
use tokio::time::{Instant, timeout};

use super::{
    METRICS, agent,
    jetstream::{lose_the_end, push_until_delivered},
    open, parcel, settle, take,
};

/// Long enough for every step of a repair: each needs two checks, a second apart, and each follows a wait of a second.
const TIME_TO_REPAIR: Duration = Duration::from_secs(12);

/// The consumer of a third party, as docs/queue.md suggests it.
async fn reader(nats: &Nats) -> Result<PullConsumer> {
    let context = jetstream::new(async_nats::connect(nats.url()).await?);
    let stream = context.get_stream(METRICS).await?;
    let settings = pull::Config {
        durable_name: Some("reader".into()),
        ..pull::Config::default()
    };
    Ok(stream.create_consumer(settings).await?)
}

/// The numbers of all messages that the reader gets now, in the stream. Acknowledges them.
async fn read(reader: &PullConsumer) -> Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    let mut messages = reader.fetch().max_messages(2000).messages().await?;
    while let Some(message) = timeout(PATIENCE, messages.next()).await? {
        let message = message.map_err(anyhow::Error::from_boxed)?;
        message.ack().await.map_err(anyhow::Error::from_boxed)?;
        let info = message.info().map_err(anyhow::Error::from_boxed)?;
        numbers.insert(info.stream_sequence);
    }
    Ok(numbers)
}

/// Consumes as the service does, for a time.
async fn consume(receivers: &mut [Receiver], time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for receiver in &mut *receivers {
            settle(receiver.batch(BATCH).await).await;
        }
    }
}

async fn all_settled(queue: &Queue) -> Result<()> {
    eventually("all are settled", async || {
        queue.depth().await.is_ok_and(|depth| depth.lag == 0)
    })
    .await
}

#[tokio::test]
async fn a_third_party_that_is_behind_gets_every_report() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let reader = reader(&nats).await?;
    for seq in 1..=10 {
        queue.push(parcel(agent(1), seq, seq)).await;
    }
    let mut receivers = queue.receivers();
    settle(take(&mut receivers, 10).await?).await;
    consume(&mut receivers, TIME_TO_REPAIR).await;
    ensure!(read(&reader).await? == (1..=10).collect());
    Ok(())
}

/// The end of the stream is lost, so that its numbers are given again. The reader has not read what is left of it.
#[tokio::test]
async fn reports_are_delivered_after_a_lost_end_and_a_third_party_gets_the_rest() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let behind = reader(&nats).await?;
    let mut receivers = queue.receivers();
    lose_the_end(&mut nats, &queue, &mut receivers).await?;
    let rest = queue.depth().await?.ranges;
    ensure!((100..900).contains(&rest), "{rest} are left");
    push_until_delivered(&queue, &mut receivers).await?;
    let read = read(&behind).await?;
    ensure!((1..=rest).all(|number| read.contains(&number)), "{read:?}");
    Ok(())
}

/// A stream elsewhere sources ours and stands still. NATS lists no consumer for it, but keeps what it has not taken.
#[tokio::test]
async fn a_stream_that_sources_ours_and_is_behind_keeps_what_it_has_not_taken() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let start = async |name: &str, leaf_nodes: String| {
        let config = folder.path().join(name);
        let text = format!("jetstream {{ domain: {name} }}\nleafnodes {{ {leaf_nodes} }}\n");
        std::fs::write(&config, text)?;
        Nats::with(["-c".as_ref(), config.as_os_str()]).await
    };
    let hub = start("hub", format!("listen: 127.0.0.1:{port}")).await?;
    let remote = format!("remotes: [{{ url: \"nats://127.0.0.1:{port}\" }}]");
    let leaf = start("leaf", remote).await?;
    let queue = open(&hub).await?;
    let client = async_nats::connect(leaf.url()).await?;
    let ours = jetstream::with_domain(client.clone(), "hub");
    eventually("the leaf is connected", async || {
        ours.get_stream(METRICS).await.is_ok()
    })
    .await?;
    let copies = jetstream::with_domain(client, "leaf");
    let copy = Config {
        name: "COPY".into(),
        sources: Some(vec![Source {
            name: METRICS.into(),
            external: Some(External {
                api_prefix: "$JS.hub.API".into(),
                delivery_prefix: Some("copy.of.ours".into()),
            }),
            ..Source::default()
        }]),
        ..Config::default()
    };
    copies.create_stream(copy).await?;
    let mut pushed = 0;
    eventually("the copy gets reports", async || {
        pushed += 1;
        queue.push(parcel(agent(1), pushed, pushed)).await;
        let copy = copies.get_stream("COPY").await;
        copy.is_ok_and(|copy| copy.cached_info().state.messages > 0)
    })
    .await?;

    leaf.freeze()?;
    for number in 1..=800 {
        let first = pushed + number * 400;
        queue.push(parcel(agent(1), first, first + 399)).await;
    }
    let mut receivers = queue.receivers();
    let all = usize::try_from(pushed)? + 800;
    settle(take(&mut receivers, all).await?).await;
    all_settled(&queue).await?;
    let kept = queue.depth().await?.ranges;
    ensure!(kept > 0, "the copy has got everything");
    consume(&mut receivers, TIME_TO_REPAIR).await;
    let still = queue.depth().await?.ranges;
    leaf.thaw()?;
    ensure!(still == kept, "{still} of {kept} are left");
    Ok(())
}
