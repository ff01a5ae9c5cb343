//! The vitals agree with `free`, `df` and `ps`, and the facts with `uname` and `getconf`, within what
//! changes between two calls. `node_exporter.rs` compares the kernel's other figures.

use std::process::Command;

use svc_agent::{facts, vitals::Sampler};
use svc_proto::v1::Vitals;

const MIB: u64 = 1024 * 1024;
/// A tolerance for other tests and builds that run at the same time.
const TRIES: usize = 10;

fn output(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn number(command: &str) -> u64 {
    output(command)
        .parse()
        .unwrap_or_else(|_| panic!("{command}"))
}

/// Checks that our value is between two values of the tool, or near them.
fn agrees(what: &str, near: u64, theirs: &str, ours: impl Fn(&Vitals) -> u64) {
    let mut sampler = Sampler::default();
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (before, ours, after) = (number(theirs), ours(&sampler.sample()), number(theirs));
        if (before.min(after).saturating_sub(near)..=before.max(after) + near).contains(&ours) {
            return;
        }
        seen.push((before, ours, after));
    }
    panic!("{what} never agreed: {seen:?}");
}

#[test]
fn memory_agrees_with_free() {
    let field = |row: &str, column| format!("free -b | awk '/^{row}:/ {{print ${column}}}'");
    agrees("memory total", 0, &field("Mem", 2), |v| {
        v.memory_total_bytes
    });
    agrees("memory used", 32 * MIB, &field("Mem", 3), |v| {
        v.memory_used_bytes
    });
    agrees("swap total", 0, &field("Swap", 2), |v| v.swap_total_bytes);
    agrees("swap used", 32 * MIB, &field("Swap", 3), |v| {
        v.swap_used_bytes
    });
}

#[test]
fn disks_agree_with_df() {
    let disks = Sampler::default().sample().disks;
    let theirs = output("df -l --output=fstype | tail -n +2");
    let real = theirs
        .lines()
        .any(|kind| ["ext4", "xfs", "btrfs"].contains(&kind.trim()));
    assert_eq!(!disks.is_empty(), real, "{disks:?}");
    for (index, disk) in disks.iter().enumerate() {
        let field = |column| format!("df -B1 --output={column} '{}' | tail -1", disk.mount_point);
        assert_eq!(output(&field("source")), disk.device);
        assert_eq!(output(&field("fstype")), disk.fs_type);
        agrees("disk size", 0, &field("size"), |v| {
            v.disks[index].total_bytes
        });
        agrees("disk use", 64 * MIB, &field("used"), |v| {
            v.disks[index].used_bytes
        });
        agrees("disk space", 64 * MIB, &field("avail"), |v| {
            v.disks[index].available_bytes.unwrap()
        });
        if disk.inodes_used.is_some() {
            agrees("inodes in use", 1000, &field("iused"), |v| {
                v.disks[index].inodes_used.unwrap()
            });
            agrees("inodes", 1000, &field("iavail"), |v| {
                v.disks[index].inodes_free.unwrap()
            });
        }
        let percent = format!("{} | tr -d '% '", field("pcent"));
        agrees("percent", 1, &percent, |v| {
            let disk = &v.disks[index];
            let whole = disk.used_bytes + disk.available_bytes.unwrap();
            (disk.used_bytes * 100).div_ceil(whole)
        });
    }
}

#[test]
fn uptime_and_processes_agree_with_proc_and_ps() {
    agrees("uptime", 1, "cut -d. -f1 /proc/uptime", |v| {
        v.uptime_seconds
    });
    agrees("processes", 20, "ps -e --no-headers | wc -l", |v| {
        v.process_count.into()
    });
}

#[test]
fn a_busy_processor_shows_in_the_vitals() {
    let mut sampler = Sampler::default();
    let end = std::time::Instant::now() + std::time::Duration::from_millis(600);
    while std::time::Instant::now() < end {
        std::hint::black_box(0);
    }
    let percent = sampler.sample().cpu_percent;
    let processors = f64::from(facts::gather().cpu_count.max(1));
    assert!(percent > 30.0 / processors && percent <= 100.0, "{percent}");
}

#[test]
fn facts_agree_with_other_tools() {
    let facts = facts::gather();
    assert_eq!(facts.hostname, output("uname -n"));
    assert_eq!(facts.kernel_version, output("uname -r"));
    assert_eq!(facts.arch, output("uname -m"));
    assert_eq!(facts.os, output(". /etc/os-release; echo $ID"));
    assert_eq!(
        facts.os_version,
        output(". /etc/os-release; echo ${VERSION_ID:-$BUILD_ID}")
    );
    assert_eq!(
        u64::from(facts.cpu_count),
        number("getconf _NPROCESSORS_ONLN")
    );
    assert_eq!(facts.boot_id, output("cat /proc/sys/kernel/random/boot_id"));
}
