//! The use of memory and swap, from /proc/meminfo.
//!
//! Used memory is what is not available, as in `free` since procps 4: caches that the kernel
//! can free immediately do not count. The values are the machine's, not a container's limits.

use crate::machine::{Machine, bounded};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub used: u64,
    pub total: u64,
    pub swap_used: u64,
    pub swap_total: u64,
}

impl Memory {
    pub fn read(machine: &Machine) -> Self {
        Self::parse(&machine.text("/proc/meminfo"))
    }

    fn parse(text: &str) -> Self {
        let bytes = |name: &str| field(text, name).unwrap_or(0);
        let (total, swap_total) = (bytes("MemTotal:"), bytes("SwapTotal:"));
        let available = field(text, "MemAvailable:").unwrap_or_else(|| before_3_14(bytes));
        Self {
            used: total.saturating_sub(available),
            total,
            swap_used: swap_total.saturating_sub(bytes("SwapFree:")),
            swap_total,
        }
    }
}

/// Linux before 3.14 does not report the available memory.
fn before_3_14(bytes: impl Fn(&str) -> u64) -> u64 {
    let names = ["MemFree:", "Buffers:", "Cached:", "SReclaimable:"];
    let sum = names
        .iter()
        .fold(0, |sum, name| bytes(name).saturating_add(sum));
    sum.saturating_sub(bytes("Shmem:"))
}

/// `Name:   1234 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = value.split_whitespace().next()?.parse().ok()?;
    Some(bounded(kilobytes.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use svc_proto::contract::limits::MAX_NUMBER;

    use super::*;

    #[test]
    fn used_memory_is_what_is_not_available() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\nCached: 500 kB\n\
                    SwapCached: 5 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n";
        let memory = Memory::parse(text);
        assert_eq!((memory.used, memory.total), (300 * 1024, 1000 * 1024));
        assert_eq!(
            (memory.swap_used, memory.swap_total),
            (50 * 1024, 200 * 1024)
        );
    }

    #[test]
    fn old_kernels_and_invalid_values_give_valid_numbers() {
        let old =
            "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 50 kB\nCached: 300 kB\nShmem: 20 kB\n";
        assert_eq!(Memory::parse(old).used, 570 * 1024);
        assert_eq!(
            Memory::parse("MemTotal: -5 kB\nSwapTotal:\n"),
            Memory::default()
        );
        let huge = Memory::parse(&format!("MemTotal: {} kB\nMemAvailable: 0 kB\n", u64::MAX));
        assert_eq!(huge.used, MAX_NUMBER);
        let more_than_all = Memory::parse("MemTotal: 10 kB\nMemAvailable: 20 kB\n");
        assert_eq!(more_than_all.used, 0);
    }
}
