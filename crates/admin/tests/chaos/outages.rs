//! PostgreSQL or all instances are away at full length: what the service acknowledges, which agents
//! are offline, and how soon it recovers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use svc_testkit::{
    Fleet, Pace, PresenceSampler, QueueKind, Site, Usage,
    faults::{self, DatabaseFault},
    raise_file_limit, times_offline,
};
use tokio::time::sleep;

const AGENTS: u32 = 200;
/// Longer than a lease, its grace, a drain's 30 s, and the 150 s after an outage.
const ALL_AWAY: Duration = Duration::from_mins(5);
/// What an instance may hold while it cannot store anything.
const MOST_MEMORY: u64 = 128 << 20;

/// Returns how soon all agents had acknowledgements again, and the most MiB of an instance.
async fn database_away(fault: DatabaseFault, length: Duration) -> Result<(Duration, u64)> {
    raise_file_limit();
    let mut site = Site::with_own_server().await?;
    let instances = site.server_process().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = (AGENTS, Pace::STEADY);
    let recovered = faults::database_away(&mut site, &addresses, fleet, fault, length).await?;
    let peaks = instances
        .each_ref()
        .map(|instance| Usage::of(instance.pid()));
    let [one, two] = peaks;
    let most = one?.peak.max(two?.peak);
    ensure!(most < MOST_MEMORY, "{most} bytes");
    Ok((recovered, most >> 20))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_database_that_stops_for_30_s_leaves_all_agents_online() -> Result<()> {
    let (recovered, memory) =
        database_away(DatabaseFault::Stopped, Duration::from_secs(30)).await?;
    println!(
        "database stopped 30 s: all {AGENTS} acknowledged again after {recovered:.1?}, {memory} MiB at most"
    );
    ensure!(recovered <= Duration::from_secs(5));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_database_that_freezes_for_50_s_leaves_all_agents_online() -> Result<()> {
    let (recovered, memory) = database_away(DatabaseFault::Frozen, Duration::from_secs(50)).await?;
    println!(
        "database frozen 50 s: all {AGENTS} acknowledged again after {recovered:.1?}, {memory} MiB at most"
    );
    ensure!(recovered <= Duration::from_secs(10));
    Ok(())
}

/// As long as a cluster manager usually takes to notice that a primary is gone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_frozen_primary_delays_acknowledgements_by_the_failover_and_5_s() -> Result<()> {
    let failover = Duration::from_secs(20);
    let fleet = (50, Pace::STEADY);
    for kind in QueueKind::BOTH {
        let took = faults::primary_frozen(kind, fleet, failover).await?;
        println!(
            "primary frozen for 20 s, then promoted standby ({kind:?}): acknowledged again {took:.1?} later"
        );
        ensure!(took <= Duration::from_secs(5), "{took:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn all_instances_away_for_five_minutes_leave_all_agents_online() -> Result<()> {
    let (killed, stopped) = tokio::join!(all_away(Signal::KILL), all_away(Signal::TERM));
    let (killed, stopped) = (killed?, stopped?);
    println!(
        "all instances away for 5 minutes: all back after {killed:.1?} (killed), {stopped:.1?} (stopped)"
    );
    Ok(())
}

async fn all_away(signal: Signal) -> Result<Duration> {
    let site = Site::new().await?;
    let instances = site.server_process().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::start(&site, &addresses, 0, AGENTS, Pace::STEADY).await?;
    let presence = PresenceSampler::start(&site);
    for instance in &instances {
        instance.signal(signal)?;
        instance.ended().await?;
    }
    sleep(ALL_AWAY).await;
    let mut again = Vec::new();
    for gone in &instances {
        again.push(site.server_process().on_ports_of(gone).start().await?);
    }
    let back = Instant::now();
    fleet.all_connected().await?;
    let took = back.elapsed();
    fleet.audit(&site).await?;
    let (samples, offline) = presence.stop().await?;
    ensure!(samples > 0 && offline == 0, "{offline} agents were offline");
    ensure!(times_offline(&site).await? == 0);
    Ok(took)
}

/// Registrations arrive all the time, and none can be answered.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_table_locked_for_60_s_leaves_no_more_server_sessions_than_the_pool_has() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.server_process().start().await?;
    let lock = "BEGIN; LOCK TABLE agents; SELECT pg_sleep(60); COMMIT";
    let most = faults::sessions_during(&site, instance.grpc, lock).await?;
    println!("table locked 60 s: {most} server sessions at most, with a pool of 16");
    ensure!(most <= 16, "{most} server sessions");
    Ok(())
}
