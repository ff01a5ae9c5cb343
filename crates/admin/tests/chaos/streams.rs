//! Streams under faults, with figures: instances that die, stop and are suspended, networks that
//! fail, and agents that move.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_testkit::{ActiveAgent, Latencies, Pace, Proxy, Site, faults, raise_file_limit};

const AGENTS: u32 = 100;
const QUICK: Pace = Pace {
    patience: Duration::from_secs(5),
    keepalive: Duration::from_secs(5),
    ..Pace::STEADY
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn agents_reconnect_in_time_after_each_of_20_kills() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let absences = Latencies::of(faults::instances_killed(&site, AGENTS, 20, QUICK).await?);
    println!("instances killed 20 times, {AGENTS} agents away for {absences}; 0 lost, 0 twice");
    ensure!(absences.quantile(0.95) <= Duration::from_secs(15));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_stop_under_load_takes_15_s_at_most() -> Result<()> {
    let site = Site::new().await?;
    let took = faults::instance_terminated(&site, AGENTS, QUICK).await?;
    println!("SIGTERM under load, among clients that never speak: exit 0 after {took:.1?}");
    ensure!(took <= Duration::from_secs(15));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn late_writes_of_an_instance_suspended_for_a_minute_change_nothing() -> Result<()> {
    let site = Site::new().await?;
    faults::instance_suspended(&site, AGENTS, Duration::from_secs(60), QUICK).await?;
    println!("an instance stood still for 60 s: 0 lost, 0 twice, all online where they are");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn an_agent_whose_network_is_lost_goes_offline_in_time() -> Result<()> {
    let (often, seldom) = tokio::join!(gone(5), gone(30));
    let (often, seldom) = (often?, seldom?);
    println!("network gone: offline after {often:.1?} (interval 5 s), {seldom:.1?} (30 s)");
    ensure!(often <= Duration::from_secs(2 * 5 + 15));
    // The keepalive closes the dead connection after 40 s + 10 s; then presence is written.
    ensure!(seldom <= Duration::from_secs(51));
    Ok(())
}

/// Returns the time from the loss of the network to offline.
async fn gone(interval: u64) -> Result<Duration> {
    let site = Site::new().await?;
    let instance = site
        .process()
        .set("INGEST_HEARTBEAT_INTERVAL", format!("{interval}s"));
    let instance = instance.start().await?;
    let proxy = Proxy::start(vec![instance.grpc]).await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat_at(proxy.address()).await?;
    call.report_acked(1..=1).await?;
    proxy.black_hole(true);
    let lost = Instant::now();
    let offline = "SELECT count(*) FROM agent_state WHERE presence = 'offline'";
    let patience = Duration::from_secs(100);
    svc_sandbox::eventually("it is offline", patience, async || {
        site.psql(offline).await.is_ok_and(|count| count == "1")
    })
    .await?;
    Ok(lost.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn an_agent_that_stops_reading_is_closed_in_time() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.server_process().start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let took = faults::stops_reading(&site, &agent).await?;
    println!("an agent stops reading: closed after {took:.1?}");
    ensure!(took <= Duration::from_secs(30));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn presence_is_right_after_each_of_1000_hops() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let instances = site.server_process().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    faults::agents_hop(&site, addresses, AGENTS, 10).await?;
    println!(
        "{} hops between instances: presence right every time",
        AGENTS * 10
    );
    Ok(())
}
