//! What a running agent costs its machine, by the kernel's figures: run by `make bench-agent`.
//!
//! The agent reports every second for a minute, thirty times as often as by default. Its fixed cost
//! (pings, timers) does not grow with the samples, so the test measures an agent without samples
//! too, divides only the difference by thirty, and adds the fixed cost.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{AUTO, Instance, Site, Usage, token};
use tokio::time::sleep;

use crate::installation::Installed;

const WATCH: Duration = Duration::from_secs(60);
/// The limits: bytes of resident memory, and a share of a core at 30 s.
const MEMORY: u64 = 15 << 20;
const SHARE: f64 = 0.001;

/// The share of a core and the bytes written in a second, on average.
async fn watched(service: &Instance, site: &Site, number: u32) -> Result<(f64, f64, Usage)> {
    let secret = token(site, AUTO).await?;
    let installed = Installed::new(site, number, &[service.grpc], &secret)?;
    let agent = installed.process(&["run"])?.start()?;
    installed.connected().await?;
    sleep(Duration::from_secs(5)).await;
    let before = Usage::of(agent.pid())?;
    sleep(WATCH).await;
    let after = Usage::of(agent.pid())?;
    agent.stop().await?;
    let seconds = WATCH.as_secs_f64();
    let share = (after.cpu - before.cpu).as_secs_f64() / seconds;
    let written = (after.written - before.written) as f64 / seconds;
    Ok((share, written, after))
}

#[tokio::test]
#[ignore = "a strict figure: run by `make bench-agent`"]
async fn an_agent_needs_little_memory_and_cpu() -> Result<()> {
    let site = Site::new().await?;
    let every_second = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let hourly = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1h");
    let (every_second, hourly) = (every_second.start().await?, hourly.start().await?);
    let (busy, idle) = tokio::join!(watched(&every_second, &site, 1), watched(&hourly, &site, 2));
    let ((busy, written, figures), (idle, _, _)) = (busy?, idle?);
    site.becomes("SELECT max(acked_seq) >= 55 FROM agent_state", "t")
        .await?;

    let at_30_s = (busy - idle).max(0.0) / 30.0 + idle;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "resident {:.1} MiB, at most {:.1} MiB, {} thread(s)",
        mib(figures.resident),
        mib(figures.peak),
        figures.threads
    );
    println!(
        "a core's share: {:.3} % at 1 s, {:.3} % without samples, {:.4} % at 30 s",
        busy * 100.0,
        idle * 100.0,
        at_30_s * 100.0
    );
    println!("written to disk: {written:.0} B a sample");
    ensure!(figures.peak <= MEMORY, "{:.1} MiB", mib(figures.peak));
    ensure!(at_30_s < SHARE, "{:.4} %", at_30_s * 100.0);
    // The network, the disk, the sampler, and for a moment a file system.
    ensure!(figures.threads <= 4, "{} threads", figures.threads);
    Ok(())
}
