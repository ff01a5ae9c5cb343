//! The memory of a connected agent: a figure of docs/sizing.md.

use anyhow::{Result, ensure};
use svc_testkit::{Fleet, Pace, Site, metric};

const AGENTS: u32 = 1_000;
const RESIDENT: &str = "process_resident_memory_bytes";

/// Far more than was measured: the limit catches a leak, or one more buffer per connection.
const MOST_KIB: f64 = 256.0;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: run by make chaos and make sizing"]
async fn a_thousand_agents_take_little_memory() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.server_process().start().await?;
    let empty = metric(instance.http, RESIDENT).await?;
    let _fleet = Fleet::reporting(&site, &[instance.grpc], AGENTS, Pace::STEADY).await?;
    let full = metric(instance.http, RESIDENT).await?;
    let each = (full - empty) / f64::from(AGENTS) / 1024.0;
    println!(
        "{AGENTS} agents: {each:.0} KiB each, over {:.0} MiB of an instance without any",
        empty / 1024.0 / 1024.0
    );
    ensure!(each < MOST_KIB, "{each:.0} KiB an agent");
    Ok(())
}
