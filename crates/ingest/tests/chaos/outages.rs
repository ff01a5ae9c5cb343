//! The database, or all instances, away at full length: what is acknowledged, who
//! is offline, and how soon all is well again. Agents report every second, to
//! instances that expect them every five, so that graces are as short as they get.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};
use tokio::time::sleep;

use crate::{
    fleet::{Fleet, Pace, Sampler, times_offline},
    harness::{Site, raise_file_limit},
    scenes::{self, Database, start_process},
};

const AGENTS: u32 = 200;
/// Longer than a lease, its grace, a drain's 30 s, and the 150 s after an outage.
const ALL_AWAY: Duration = Duration::from_mins(5);
/// What an instance may hold when nothing can be stored: it does not pile up.
const MOST_MEMORY: u64 = 128 << 20;

/// How soon all was well again, and the most MiB that an instance held.
async fn database_away(fault: Database, length: Duration) -> Result<(Duration, u64)> {
    raise_file_limit();
    let mut site = Site::with_own_server().await?;
    let instances = [
        start_process(&site, None).await?,
        start_process(&site, None).await?,
    ];
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = (AGENTS, Pace::default());
    let recovered = scenes::database_away(&mut site, &addresses, fleet, fault, length).await?;
    let pids = [instances[0].pid()?, instances[1].pid()?];
    let most = memory(pids[0], "VmHWM:")?.max(memory(pids[1], "VmHWM:")?);
    ensure!(most < MOST_MEMORY, "{most} bytes");
    Ok((recovered, most >> 20))
}

/// What the kernel says of a process' memory, in bytes: `VmRSS:` is what it holds
/// now, `VmHWM:` the most that it has ever held.
pub fn memory(pid: Pid, which: &'static str) -> Result<u64> {
    let status = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(status)?;
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context(which)?.parse::<u64>()? << 10)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_database_that_stops_for_30_s_makes_nobody_offline() -> Result<()> {
    let (recovered, memory) = database_away(Database::Stopped, Duration::from_secs(30)).await?;
    println!(
        "database stopped 30 s: all {AGENTS} acknowledged again after {recovered:.1?}, {memory} MiB at most"
    );
    ensure!(recovered <= Duration::from_secs(5));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_database_that_freezes_for_50_s_makes_nobody_offline() -> Result<()> {
    let (recovered, memory) = database_away(Database::Frozen, Duration::from_secs(50)).await?;
    println!(
        "database frozen 50 s: all {AGENTS} acknowledged again after {recovered:.1?}, {memory} MiB at most"
    );
    ensure!(recovered <= Duration::from_secs(10));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn all_instances_away_for_five_minutes_make_nobody_offline() -> Result<()> {
    let (killed, stopped) = tokio::join!(all_away(Signal::KILL), all_away(Signal::TERM));
    let (killed, stopped) = (killed?, stopped?);
    println!(
        "all instances away for 5 minutes: all back after {killed:.1?} (killed), {stopped:.1?} (stopped)"
    );
    Ok(())
}

async fn all_away(signal: Signal) -> Result<Duration> {
    let site = Site::new().await?;
    let mut instances = [
        start_process(&site, None).await?,
        start_process(&site, None).await?,
    ];
    let addresses: Vec<SocketAddr> = instances.iter().map(|instance| instance.grpc).collect();
    let fleet = Fleet::start(&site, &addresses, 0, AGENTS, Pace::default()).await?;
    let sampler = Sampler::start(&site)?;
    for instance in &mut instances {
        instance.signal(signal)?;
        instance.ended().await?;
    }
    sleep(ALL_AWAY).await;
    let mut again = Vec::new();
    for gone in &instances {
        again.push(start_process(&site, Some(gone)).await?);
    }
    let back = Instant::now();
    fleet.all_connected().await?;
    let took = back.elapsed();
    fleet.audit(&site).await?;
    let (looks, worst) = sampler.stop().await?;
    ensure!(looks > 0 && worst == 0, "{worst} offline in {looks} looks");
    ensure!(times_offline(&site).await? == 0);
    Ok(took)
}
