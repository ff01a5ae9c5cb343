//! What the operating system knows of the attacked process.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::harness::{Process, get};

const MIB: u64 = 1024 * 1024;

/// Resident memory, in MiB.
pub fn resident(process: &Process) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?;
    Ok(kib.parse::<u64>()? * 1024 / MIB)
}

/// CPU time used so far, from `/proc/PID/stat`.
pub fn cpu(process: &Process) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid()?))?;
    let fields = stat
        .rsplit_once(')')
        .context("no end of the name")?
        .1
        .split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let seconds = ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Duration::from_secs_f64(seconds))
}

/// How many cores the process keeps busy while `during` runs.
pub async fn cores<T>(process: &Process, during: impl Future<Output = T>) -> Result<(T, f64)> {
    let (before, clock) = (cpu(process)?, Instant::now());
    let output = during.await;
    let used = cpu(process)? - before;
    Ok((output, used.as_secs_f64() / clock.elapsed().as_secs_f64()))
}

/// A counter or gauge of `/metrics`, by its full name; 0 if it is not there yet.
pub async fn metric(process: &Process, name: &str) -> Result<f64> {
    let page = get(process.http, "/metrics").await?.body;
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.map_or(Ok(0.0), str::parse)?)
}
