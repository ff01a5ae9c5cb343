//! What a running agent costs its machine: run by `make bench-agent`, on the
//! optimised build, against the real service, with the kernel's own figures.
//!
//! It reports every second for a minute, thirty times as often as it does by default.
//! What it costs beside its samples (pings, timers) does not grow with them, so dividing
//! by thirty flatters it; the figure without samples is measured apart, and added.

#![expect(
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../../../ingest/tests/it/agents.rs"]
mod agents;
#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../../../ingest/tests/harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../it/played.rs"]
mod played;
#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../it/process.rs"]
mod process;

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use agents::{AUTO, token};
use harness::{Instance, Site};
use played::{Installed, becomes};
use process::AgentProcess;

const WATCH: Duration = Duration::from_secs(60);
const TICKS_A_SECOND: f64 = 100.0;
/// What the issue allows: bytes of resident memory, and a share of a core at 30 s.
const MEMORY: u64 = 15 << 20;
const SHARE: f64 = 0.001;

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug)]
struct Figures {
    cpu_seconds: f64,
    resident: u64,
    peak: u64,
    threads: u64,
    written: u64,
}

impl Figures {
    fn of(id: u32) -> Result<Self> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}"));
        let status = read("status")?;
        let field = |text: &str, name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            Ok(number.with_context(|| name.to_owned())?.parse()?)
        };
        let stat = read("stat")?;
        let (_, fields) = stat.rsplit_once(')').context("stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(Self {
            cpu_seconds: ticks / TICKS_A_SECOND,
            resident: field(&status, "VmRSS:")? * 1024,
            peak: field(&status, "VmHWM:")? * 1024,
            threads: field(&status, "Threads:")?,
            written: field(&read("io")?, "write_bytes:")?,
        })
    }
}

/// Share of a core and bytes written a second, over the time of watching.
async fn watched(service: &Instance, site: &Site, number: u32) -> Result<(f64, f64, Figures)> {
    let secret = token(site, AUTO).await?;
    let installed = Installed::new(site, number, &[service.grpc], &secret)?;
    let mut agent = AgentProcess::start(&installed, &["run"])?;
    installed.connected().await?;
    sleep(Duration::from_secs(5)).await;
    let before = Figures::of(agent.id())?;
    sleep(WATCH).await;
    let after = Figures::of(agent.id())?;
    agent.stop().await?;
    let seconds = WATCH.as_secs_f64();
    let share = (after.cpu_seconds - before.cpu_seconds) / seconds;
    let written = (after.written - before.written) as f64 / seconds;
    Ok((share, written, after))
}

#[tokio::test]
#[ignore = "a strict figure: run by `make bench-agent`"]
async fn an_agent_costs_next_to_nothing() -> Result<()> {
    let site = Site::new().await?;
    let every_second = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let hourly = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1h");
    let (every_second, hourly) = (every_second.start().await?, hourly.start().await?);
    let (busy, idle) = tokio::join!(watched(&every_second, &site, 1), watched(&hourly, &site, 2));
    let ((busy, written, figures), (idle, _, _)) = (busy?, idle?);
    becomes(&site, "SELECT max(acked_seq) >= 55 FROM agent_state", "t").await?;

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
    ensure!(figures.threads <= 2, "{} threads", figures.threads);
    Ok(())
}
