//! CPU time and resident memory of processes, read from /proc.
//!
//! PostgreSQL is a process tree: the postmaster forks a backend for each connection, and backends come
//! and go during a measurement. Linux adds the CPU time of a child to the `cutime` and `cstime` of its
//! parent when the parent reaps it. So the CPU time of the tree is that of the postmaster itself, of its
//! reaped children, and of its living children. The sum never decreases, whichever backends end between
//! two readings. Its resolution is one clock tick (10 ms), which is small against a window of 15 s or more.

use std::{fmt, fs, path::Path};

use anyhow::Context;
use rustix::process::{Pid, getpid};
use serde::{Deserialize, Serialize};

/// CPU time since the start, and resident memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    pub cpu_us: u64,
    pub rss_kib: u64,
}

/// The fields of `/proc/<pid>/stat` that matter here.
struct Stat {
    parent: Option<Pid>,
    usage: ProcessUsage,
    reaped_us: u64,
}

/// Usage of one process.
pub fn usage(pid: Pid) -> anyhow::Result<ProcessUsage> {
    Ok(Stat::of(pid)?.usage)
}

pub fn own_usage() -> ProcessUsage {
    usage(getpid()).unwrap_or_default()
}

/// Usage of a process and all its children. Shared memory is counted once for each of them.
pub fn tree_usage(pid: Pid) -> anyhow::Result<ProcessUsage> {
    let all = pids().filter_map(Stat::read);
    let children = all.filter(|stat| stat.parent == Some(pid));
    let mut sum = ProcessUsage::default();
    for stat in children.chain([Stat::of(pid)?]) {
        sum.cpu_us += stat.usage.cpu_us + stat.reaped_us;
        sum.rss_kib += stat.usage.rss_kib;
    }
    Ok(sum)
}

/// The memory that a process and its children have for themselves: without shared memory and files.
pub fn tree_private_kib(pid: Pid) -> u64 {
    let is_meant =
        |one: &Pid| *one == pid || Stat::read(*one).is_some_and(|stat| stat.parent == Some(pid));
    let private = |pid| kib(&format!("/proc/{pid}/status"), "RssAnon");
    pids().filter(is_meant).map(private).sum()
}

/// The process id of the postmaster of a data folder.
pub fn postmaster(data_dir: &Path) -> anyhow::Result<Pid> {
    let file = data_dir.join("postmaster.pid");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let first = text.lines().next().and_then(|line| parse(line.trim()));
    first.context("a process id")
}

/// Memory that is available without swapping; 0 if the kernel does not report it.
pub fn available_mib() -> u64 {
    meminfo_mib("MemAvailable")
}

fn meminfo_mib(key: &str) -> u64 {
    kib("/proc/meminfo", key) / 1024
}

/// A line such as `MemTotal: 4 kB`; 0 if there is none.
fn kib(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = value(&text, key);
    let kib = value.split(' ').next().and_then(|kib| kib.parse().ok());
    kib.unwrap_or(0)
}

/// The machine that figures were measured on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    pub kernel: String,
}

impl Machine {
    pub fn here() -> Machine {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: value(&file("/proc/cpuinfo"), "model name"),
            memory_mib: meminfo_mib("MemTotal"),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cores ({}), {} MiB, Linux {}",
            self.cores, self.cpu, self.memory_mib, self.kernel
        )
    }
}

fn value(text: &str, key: &str) -> String {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.trim() == key);
    values
        .next()
        .map_or("unknown".into(), |(_, value)| value.trim().to_owned())
}

fn pids() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| parse(entry.file_name().to_str()?))
}

fn parse(pid: &str) -> Option<Pid> {
    Pid::from_raw(pid.parse().ok()?)
}

impl Stat {
    fn of(pid: Pid) -> anyhow::Result<Stat> {
        Stat::read(pid).with_context(|| format!("process {pid} has ended"))
    }

    /// The command name, the second field, may contain spaces and brackets. So the fields are counted from
    /// its last closing bracket; the first after it is number 3 of proc(5).
    fn read(pid: Pid) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = |user, system| Some(micros(field(user)? + field(system)?));
        Some(Stat {
            parent: parse(fields.get(1)?),
            usage: ProcessUsage {
                cpu_us: ticks(14, 15)?,
                rss_kib: field(24)? * rustix::param::page_size() as u64 / 1024,
            },
            reaped_us: ticks(16, 17)?,
        })
    }
}

fn micros(ticks: u64) -> u64 {
    ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_uses_cpu_time() {
        let (before, began) = (own_usage(), std::time::Instant::now());
        while began.elapsed() < std::time::Duration::from_millis(200) {
            std::hint::black_box(began.elapsed());
        }
        let after = own_usage();
        assert!(after.cpu_us > before.cpu_us && after.rss_kib > 0);
    }

    #[test]
    fn a_process_tree_includes_reaped_children() {
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let before = tree_usage(getpid()).unwrap();
        let status = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(status.unwrap().success());
        let (after, own) = (tree_usage(getpid()).unwrap(), own_usage());
        assert!(after.cpu_us > before.cpu_us);
        assert!(after.cpu_us > own.cpu_us, "{after:?} {own:?}");
    }
}
