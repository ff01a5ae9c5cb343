//! A cluster of three NATS servers that loses the node which leads the stream.

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::{self, Context, stream::Info};
use svc_sandbox::{Nats, NatsOptions, free_port};
use svc_testkit::{Fleet, Pace, Site, eventually, times_offline};

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

async fn info(context: &Context, stream: &str) -> Result<Info> {
    let mut stream = context.get_stream(stream).await?;
    Ok(stream.info().await?.clone())
}

/// As `nats stream edit --replicas 3` does.
async fn replicate(context: &Context) -> Result<()> {
    for stream in STREAMS {
        let mut config = info(context, stream).await?.config;
        config.num_replicas = 3;
        context.update_stream(config).await?;
        eventually("all replicas are current", async || {
            let cluster = info(context, stream)
                .await
                .ok()
                .and_then(|info| info.cluster);
            let replicas = cluster.map(|cluster| cluster.replicas).unwrap_or_default();
            replicas.len() == 2 && replicas.iter().all(|replica| replica.current)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_lost_node_of_a_nats_cluster_costs_nothing() -> Result<()> {
    let mut nodes = cluster().await?;
    let urls = nodes.each_ref().map(Nats::url);
    let context = jetstream::new(async_nats::connect(&urls[..]).await?);
    let site = Site::new().await?;
    let instances = site.instance().set("INGEST_QUEUE_URL", urls.join(","));
    let instances = instances.start_pair().await?;
    replicate(&context).await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, 20, Pace::BRISK).await?;

    for _ in 0..2 {
        let cluster = info(&context, STREAMS[0]).await?.cluster;
        let leader = cluster.and_then(|cluster| cluster.leader);
        let leader: usize = leader.context("no leader")?.parse()?;
        nodes[leader].kill().await?;
        fleet.all_acked_again().await?;
        nodes[leader].start_again().await?;
        replicate(&context).await?;
    }
    fleet.all_acked_again().await?;
    ensure!(times_offline(&site).await? == 0, "agents were offline");
    fleet.audit(&site).await
}
