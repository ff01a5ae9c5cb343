//! What processes cost, read from /proc: CPU time and resident memory.
//!
//! PostgreSQL is a family: its backends come and go, and the CPU of those that went is the
//! postmaster's `cutime`. So the family's CPU is the postmaster's own, its dead children's, and that
//! of the children that live.

use std::{fs, path::Path};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// CPU time in microseconds and resident memory in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
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

/// One process.
pub fn cost(pid: u32) -> anyhow::Result<Cost> {
    let stat = Stat::read(pid).with_context(|| format!("process {pid} is gone"))?;
    Ok(Cost {
        cpu_us: micros(stat.own_ticks),
        rss_kib: kib(stat.pages),
    })
}

pub fn own_cost() -> Cost {
    cost(std::process::id()).unwrap_or_default()
}

/// A process and all its children, dead or alive. Shared memory is counted once for each.
pub fn family_cost(pid: u32) -> anyhow::Result<Cost> {
    let head = Stat::read(pid).with_context(|| format!("process {pid} is gone"))?;
    let (mut ticks, mut pages) = (head.own_ticks + head.reaped_ticks, head.pages);
    for child in pids()
        .filter_map(Stat::read)
        .filter(|stat| stat.parent == pid)
    {
        ticks += child.own_ticks + child.reaped_ticks;
        pages += child.pages;
    }
    Ok(Cost {
        cpu_us: micros(ticks),
        rss_kib: kib(pages),
    })
}

/// The postmaster of a data folder.
pub fn postmaster(data_dir: &Path) -> anyhow::Result<u32> {
    let file = data_dir.join("postmaster.pid");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let first = text.lines().next().unwrap_or_default();
    first.trim().parse().context("a process id")
}

/// What the machine could still give away without swapping; 0 where it does not say.
pub fn available_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = value(&text, "MemAvailable");
    let kib = value.split(' ').next().and_then(|kib| kib.parse().ok());
    kib.map_or(0, |kib: u64| kib / 1024)
}

/// What the figures were measured on, for who compares them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    pub kernel: String,
}

impl Machine {
    pub fn here() -> Machine {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = value(&file("/proc/cpuinfo"), "model name");
        let memory = value(&file("/proc/meminfo"), "MemTotal");
        let memory = memory.split(' ').next().and_then(|kib| kib.parse().ok());
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu,
            memory_mib: memory.unwrap_or(0_u64) / 1024,
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
    /// Fields are counted from behind the command's closing bracket: that one may hold anything.
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
    fn a_process_that_works_is_seen_to_cost() {
        let before = own_cost();
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(200) {
            std::hint::black_box(began.elapsed());
        }
        let after = own_cost();
        assert!(after.cpu_us > before.cpu_us && after.rss_kib > 0);
        assert!(cost(u32::MAX - 1).is_err());
    }

    #[test]
    fn a_family_includes_children_that_are_gone() {
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let before = family_cost(std::process::id()).unwrap();
        let status = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(status.unwrap().success());
        let after = family_cost(std::process::id()).unwrap();
        let own = own_cost();
        assert!(after.cpu_us > before.cpu_us);
        assert!(after.cpu_us > own.cpu_us, "{after:?} {own:?}");
    }
}
