//! File descriptors run out: the service sheds connections, waits without spinning, and recovers
//! when the clients have left.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, prlimit};
use svc_sandbox::Identity;
use svc_testkit::{ServiceProcess, Site, Usage, channel, eventually, get};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

/// The measurements while there were no descriptors, and after.
struct Outcome {
    shed: bool,
    cores: f64,
    recovery: Duration,
    lines: usize,
}

/// Lowers the limit of a running process below what its clients need.
async fn exhaust(process: &ServiceProcess, clients: usize) -> Result<Outcome> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid()))?.count() as u64;
    let limit = Rlimit {
        current: Some(open + clients as u64 / 2),
        maximum: Some(open + clients as u64 / 2),
    };
    prlimit(Some(process.pid()), Resource::Nofile, limit)?;
    let lines = process.logs().lines().count();
    let mut crowd = Vec::new();
    for _ in 0..clients {
        crowd.push(TcpStream::connect(process.grpc).await?);
    }
    let mut last = TcpStream::connect(process.grpc).await?;
    let closed = timeout(Duration::from_secs(5), last.read(&mut [0; 1])).await;
    let shed = closed.is_ok_and(|read| !matches!(read, Ok(1..)));
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
    Ok(Outcome {
        shed,
        cores,
        recovery: left.elapsed(),
        lines,
    })
}

impl Outcome {
    fn print(&self, clients: usize) {
        println!(
            "out of files with {clients} clients: shed {}, {:.3} cores while idle, served again after {:?}, {} lines logged",
            self.shed, self.cores, self.recovery, self.lines
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_the_service_sheds_and_recovers() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let outcome = exhaust(&process, 100).await?;
    outcome.print(100);
    ensure!(
        outcome.shed,
        "a new connection was neither served nor closed"
    );
    ensure!(outcome.lines < 10, "too many log lines");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn without_file_descriptors_the_service_idles_and_recovers_within_2_s() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let outcome = exhaust(&process, 4000).await?;
    outcome.print(4000);
    ensure!(
        outcome.shed,
        "a new connection was neither served nor closed"
    );
    ensure!(outcome.cores < 0.1, "{} cores", outcome.cores);
    ensure!(outcome.recovery < Duration::from_secs(2));
    ensure!(outcome.lines < 10, "too many log lines");
    Ok(())
}
