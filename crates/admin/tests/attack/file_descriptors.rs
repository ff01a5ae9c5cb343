//! File descriptors run out: the service sheds connections, waits without spinning, and recovers
//! when the clients have left.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, prlimit};
use svc_sandbox::Identity;
use svc_testkit::{PATIENCE, Site, Usage, channel, eventually, get, metric};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

/// Lowers the limit of a running process below what its clients need. Fails unless it sheds
/// connections, logs little, and serves again when they have left. Returns how many cores it kept
/// busy meanwhile, and how long the recovery took.
async fn exhaust(clients: usize) -> Result<(f64, Duration)> {
    let (_site, process) = Site::with_process().await?;
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid()))?.count() as u64;
    let limit = Some(open + clients as u64 / 2);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    prlimit(Some(process.pid()), Resource::Nofile, limit)?;
    let lines = process.logs().lines().count();
    let mut crowd = Vec::new();
    for _ in 0..clients {
        crowd.push(TcpStream::connect(process.grpc).await?);
    }
    let mut last = TcpStream::connect(process.grpc).await?;
    let closed = timeout(PATIENCE, last.read(&mut [0; 1])).await;
    let closed = closed.is_ok_and(|read| !matches!(read, Ok(1..)));
    ensure!(closed, "a new connection was neither served nor closed");
    let idle = tokio::time::sleep(Duration::from_secs(3));
    let ((), cores) = Usage::cores(process.pid(), idle).await?;
    let lines = process.logs().lines().count() - lines;
    drop(crowd);
    let left = Instant::now();
    let identity = Identity::self_signed("agent")?;
    eventually("both ports serve again", async || {
        channel(process.grpc, &identity).await.is_ok()
            && get(process.http, "/healthz").await.is_ok()
    })
    .await?;
    let recovery = left.elapsed();
    let shed = metric(process.http, "connections_shed_total").await?;
    ensure!(shed > 0.0, "no connection was shed");
    println!(
        "out of files with {clients} clients: {cores:.3} cores while idle, served again after {recovery:?}, {lines} lines logged"
    );
    ensure!(lines < 10, "too many log lines");
    Ok((cores, recovery))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_the_service_sheds_and_recovers() -> Result<()> {
    exhaust(100).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn without_file_descriptors_the_service_idles_and_recovers_within_2_s() -> Result<()> {
    let (cores, recovery) = exhaust(4000).await?;
    ensure!(cores < 0.1, "{cores} cores");
    ensure!(recovery < Duration::from_secs(2));
    Ok(())
}
