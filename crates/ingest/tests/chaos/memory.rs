//! What a connected agent costs an instance: a figure of docs/sizing.md.

use std::{net::SocketAddr, time::Instant};

use anyhow::{Context, Result, ensure};

use crate::{
    fleet::{Fleet, Pace},
    harness::{Site, get},
    scenes::start_process,
};

const AGENTS: u32 = 1_000;

/// Far beyond what was measured: what is caught is a leak, or a buffer a connection.
const MOST_KIB: f64 = 256.0;

async fn resident(http: SocketAddr) -> Result<f64> {
    let metrics = get(http, "/metrics").await?.body;
    let line = metrics
        .lines()
        .find(|line| !line.starts_with('#') && line.contains("process_resident_memory_bytes"));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.context("no resident memory")?.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: run by make chaos and make sizing"]
async fn memory_of_a_thousand_agents() -> Result<()> {
    let site = Site::new().await?;
    let instance = start_process(&site, None).await?;
    let empty = resident(instance.http).await?;
    let fleet = Fleet::start(&site, &[instance.grpc], 0, AGENTS, Pace::default()).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let full = resident(instance.http).await?;
    let each = (full - empty) / f64::from(AGENTS) / 1024.0;
    println!(
        "{AGENTS} agents: {each:.0} KiB each, over {:.0} MiB of an instance without any",
        empty / 1024.0 / 1024.0
    );
    ensure!(each < MOST_KIB, "{each:.0} KiB an agent");
    Ok(())
}
