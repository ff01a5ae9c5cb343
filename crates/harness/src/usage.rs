//! What the kernel reports about a process: memory, CPU time, threads, bytes written.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::Pid;
use tokio::{task::JoinSet, time::interval};

/// The figures of one moment, from `/proc/<pid>`.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu: Duration,
    /// Bytes in memory now, and at most so far.
    pub resident: u64,
    pub peak: u64,
    pub threads: u64,
    /// Bytes written to disk so far.
    pub written: u64,
}

impl Usage {
    pub fn of(pid: Pid) -> Result<Self> {
        let file =
            |name: &str| fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
        let (status, io) = (file("status")?, file("io")?);
        Ok(Self {
            cpu: cpu(&file("stat")?)?,
            resident: field(&status, "VmRSS:")? * 1024,
            peak: field(&status, "VmHWM:")? * 1024,
            threads: field(&status, "Threads:")?,
            written: field(&io, "write_bytes:")?,
        })
    }

    pub fn resident_mib(&self) -> u64 {
        self.resident >> 20
    }

    /// The most bytes in memory while `tasks` run.
    pub async fn peak_during(pid: Pid, mut tasks: JoinSet<()>) -> Result<u64> {
        let (mut tick, mut peak) = (interval(Duration::from_millis(100)), 0);
        loop {
            tokio::select! {
                _ = tick.tick() => peak = peak.max(Self::of(pid)?.resident),
                ended = tasks.join_next() => match ended {
                    Some(ended) => ended?,
                    None => return Ok(peak),
                },
            }
        }
    }

    /// How many cores the process keeps busy while `during` runs.
    pub async fn cores<T>(pid: Pid, during: impl Future<Output = T>) -> Result<(T, f64)> {
        let (before, clock) = (Self::of(pid)?.cpu, Instant::now());
        let output = during.await;
        let used = Self::of(pid)?.cpu - before;
        Ok((output, used.as_secs_f64() / clock.elapsed().as_secs_f64()))
    }
}

fn field(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    Ok(number.with_context(|| name.to_owned())?.parse()?)
}

/// User and system time. The name of the program is in brackets and may contain anything, so the
/// fields are counted from the closing one.
fn cpu(stat: &str) -> Result<Duration> {
    let (_, fields) = stat.rsplit_once(')').context("no end of the name")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Duration::from_secs_f64(seconds))
}
