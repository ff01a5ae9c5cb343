//! CPU time and resident memory of processes, read from /proc.
//!
//! PostgreSQL is a process tree: the postmaster forks a backend for each connection, and backends come
//! and go during a measurement. Linux adds the CPU time of a child to the `cutime` and `cstime` of its
//! parent when the parent reaps it. So the CPU time of the tree is that of the postmaster itself, of its
//! reaped children, and of its living children. The sum never decreases, whichever backends end between
//! two readings. Its resolution is one clock tick (10 ms), which is small against a window of 15 s or more.

use std::{fs, path::Path};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// CPU time since the start, and resident memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    pub cpu_us: u64,
    pub rss_kib: u64,
}

/// The fields of `/proc/<pid>/stat` that matter here.
struct Stat {
    parent: u32,
    own_ticks: u64,
    reaped_ticks: u64,
    pages: u64,
}

/// Usage of one process.
pub fn usage(pid: u32) -> anyhow::Result<ProcessUsage> {
    let stat = Stat::read(pid).with_context(|| format!("process {pid} has ended"))?;
    Ok(ProcessUsage {
        cpu_us: micros(stat.own_ticks),
        rss_kib: kib(stat.pages),
    })
}

pub fn own_usage() -> ProcessUsage {
    usage(std::process::id()).unwrap_or_default()
}

/// Usage of a process and all its children. Shared memory is counted once for each of them.
pub fn tree_usage(pid: u32) -> anyhow::Result<ProcessUsage> {
    let parent = Stat::read(pid).with_context(|| format!("process {pid} has ended"))?;
    let (mut ticks, mut pages) = (parent.own_ticks + parent.reaped_ticks, parent.pages);
    for child in pids()
        .filter_map(Stat::read)
        .filter(|stat| stat.parent == pid)
    {
        ticks += child.own_ticks + child.reaped_ticks;
        pages += child.pages;
    }
    Ok(ProcessUsage {
        cpu_us: micros(ticks),
        rss_kib: kib(pages),
    })
}

/// The process id of the postmaster of a data folder.
pub fn postmaster(data_dir: &Path) -> anyhow::Result<u32> {
    let file = data_dir.join("postmaster.pid");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let first = text.lines().next().unwrap_or_default();
    first.trim().parse().context("a process id")
}

/// Memory that is available without swapping; 0 if the kernel does not report it.
pub fn available_mib() -> u64 {
    meminfo_mib("MemAvailable")
}

fn meminfo_mib(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = value(&text, key);
    let kib = value.split(' ').next().and_then(|kib| kib.parse().ok());
    kib.map_or(0, |kib: u64| kib / 1024)
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

fn value(text: &str, key: &str) -> String {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.trim() == key);
    values
        .next()
        .map_or("unknown".into(), |(_, value)| value.trim().to_owned())
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Stat {
    /// The command name, the second field, may contain spaces and brackets. So the fields are counted from
    /// its last closing bracket; the first after it is number 3 of proc(5).
    fn read(pid: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            parent: u32::try_from(field(4)?).ok()?,
            own_ticks: field(14)? + field(15)?,
            reaped_ticks: field(16)? + field(17)?,
            pages: field(24)?,
        })
    }
}

fn micros(ticks: u64) -> u64 {
    ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

fn kib(pages: u64) -> u64 {
    pages * rustix::param::page_size() as u64 / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_uses_cpu_time() {
        let before = own_usage();
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(200) {
            std::hint::black_box(began.elapsed());
        }
        let after = own_usage();
        assert!(after.cpu_us > before.cpu_us && after.rss_kib > 0);
        assert!(usage(u32::MAX - 1).is_err());
    }

    #[test]
    fn a_process_tree_includes_reaped_children() {
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let before = tree_usage(std::process::id()).unwrap();
        let status = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(status.unwrap().success());
        let after = tree_usage(std::process::id()).unwrap();
        let own = own_usage();
        assert!(after.cpu_us > before.cpu_us);
        assert!(after.cpu_us > own.cpu_us, "{after:?} {own:?}");
    }
}
