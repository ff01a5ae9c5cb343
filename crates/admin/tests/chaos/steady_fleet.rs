//! Ten minutes without changes: the service stores samples and never writes presence.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{Fleet, Pace, Site, presence_digest};
use tokio::time::sleep;

const AGENTS: u32 = 200;
const LENGTH: Duration = Duration::from_mins(10);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn ten_minutes_of_a_steady_fleet_write_no_presence() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.server_process().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, AGENTS, Pace::STEADY).await?;
    let (before, acked) = (presence_digest(&site).await?, fleet.acked());
    sleep(LENGTH).await;
    let heartbeats = fleet.acked() - acked;
    println!(
        "{AGENTS} agents for {LENGTH:?}: {heartbeats} heartbeats acknowledged, presence unchanged"
    );
    ensure!(
        presence_digest(&site).await? == before,
        "presence was written"
    );
    ensure!(
        heartbeats > u64::from(AGENTS) * LENGTH.as_secs() / 2,
        "the fleet was not steady"
    );
    fleet.audit(&site).await
}
