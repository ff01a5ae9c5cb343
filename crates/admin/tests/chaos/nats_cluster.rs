//! A cluster of three NATS servers that loses the node which leads the stream.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::{
    self, Context, ErrorCode,
    context::GetStreamErrorKind,
    stream::{ClusterInfo, Info},
};
use futures_util::TryStreamExt;
use svc_sandbox::{Nats, NatsOptions, free_port};
use svc_testkit::{Fleet, Pace, Site, times_offline};

/// For an election (up to nine seconds) that may have to be repeated, and for a node to catch up.
const PATIENCE: Duration = Duration::from_mins(2);
const STREAMS: [&str; 2] = ["SVC_INGEST_METRICS", "SVC_INGEST_DEAD_LETTERS"];

/// Three servers, named by their index.
async fn cluster() -> Result<[Nats; 3]> {
    let routes = [free_port()?, free_port()?, free_port()?];
    let routes = routes.map(|port| format!("nats://127.0.0.1:{port}"));
    let all = routes.join(",");
    let node = |index: usize| {
        let name = index.to_string();
        let arguments = [
            "--cluster_name",
            "svc",
            "--name",
            &name,
            "--cluster",
            &routes[index],
            "--routes",
            &all,
        ];
        Nats::start(NatsOptions {
            arguments: arguments.map(Into::into).to_vec(),
            ..NatsOptions::default()
        })
    };
    let (a, b, c) = tokio::try_join!(node(0), node(1), node(2))?;
    Ok([a, b, c])
}

/// Asks until the cluster answers as wanted. While it elects a leader, requests fail or remain unanswered.
async fn answers(what: &str, asked: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let mut last = Ok(false);
    let answered = svc_sandbox::eventually(what, PATIENCE, async || {
        last = asked().await;
        matches!(last, Ok(true))
    });
    answered.await.with_context(|| format!("{last:?}"))
}

/// Whether the cluster answers that it has no stream yet.
async fn no_stream(context: &Context) -> Result<bool> {
    let Err(error) = context.get_stream(STREAMS[0]).await else {
        return Ok(false);
    };
    match error.kind() {
        GetStreamErrorKind::JetStream(answer) => {
            Ok(answer.error_code() == ErrorCode::STREAM_NOT_FOUND)
        }
        _ => Err(error.into()),
    }
}

/// As `nats stream edit --replicas 3` does, until all replicas of the streams and their consumers are current. Consumers follow
/// their stream a little later. Until then a consumer is on one node only, and delivers nothing while that is away.
async fn replicate(context: &Context) -> Result<()> {
    for name in STREAMS {
        answers("all replicas are current", async || {
            let stream = context.get_stream(name).await?;
            let Info {
                mut config,
                cluster,
                state,
                ..
            } = stream.cached_info().clone();
            if config.num_replicas != 3 {
                config.num_replicas = 3;
                context.update_stream(config).await?;
            }
            let consumers: Vec<_> = stream.consumers().try_collect().await?;
            let all_listed = consumers.len() == state.consumer_count;
            let consumers = consumers.into_iter().map(|consumer| consumer.cluster);
            Ok(all_listed && consumers.chain([cluster]).all(is_current))
        })
        .await?;
    }
    Ok(())
}

fn is_current(cluster: Option<ClusterInfo>) -> bool {
    let replicas = cluster.map(|cluster| cluster.replicas).unwrap_or_default();
    replicas.len() == 2 && replicas.iter().all(|replica| replica.current)
}

/// The index of the node that leads the stream of reports.
async fn leader(context: &Context) -> Result<usize> {
    let mut leader = None;
    let found = svc_sandbox::eventually("the stream has a leader", PATIENCE, async || {
        let stream = context.get_stream(STREAMS[0]).await.ok();
        leader = stream.and_then(|stream| stream.cached_info().cluster.clone()?.leader);
        leader.is_some()
    });
    found.await?;
    Ok(leader.context("no leader")?.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_lost_node_of_a_nats_cluster_costs_nothing() -> Result<()> {
    let mut nodes = cluster().await?;
    let urls = nodes.each_ref().map(Nats::url);
    let context = jetstream::new(async_nats::connect(&urls[..]).await?);
    answers("the cluster has a leader", async || {
        no_stream(&context).await
    })
    .await?;
    let site = Site::new().await?;
    let instances = site.instance().set("INGEST_QUEUE_URL", urls.join(","));
    let instances = instances.start_pair().await?;
    replicate(&context).await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, 20, Pace::BRISK).await?;

    for _ in 0..2 {
        let leader = leader(&context).await?;
        nodes[leader].kill().await?;
        let killed = Instant::now();
        fleet.all_acked_again().await?;
        let back = killed.elapsed();
        eprintln!("the stream's leader was killed: all agents acknowledged again after {back:.1?}");
        nodes[leader].start_again().await?;
        replicate(&context).await?;
    }
    fleet.all_acked_again().await?;
    ensure!(times_offline(&site).await? == 0, "agents were offline");
    fleet.audit(&site).await
}
