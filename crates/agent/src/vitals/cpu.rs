//! The load of all processors between two samples, from /proc/stat.
//!
//! Waiting for a disk (iowait) counts as idle: the processor could have worked. Time that the
//! hypervisor took away (steal) counts as busy: it could not. The time of guests is already
//! part of `user` and `nice`. Steal is also reported by itself: it tells a busy machine from
//! one that is kept from working.

use crate::machine::{Machine, bounded};

/// The unit of /proc/stat, on every architecture that Rust builds for.
const TICK_MS: u64 = 10;

/// Processor time since the boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    idle: u64,
    total: u64,
    /// Unknown on old kernels.
    steal: Option<u64>,
}

impl Times {
    pub fn read(machine: &Machine) -> Self {
        Self::parse(&machine.text("/proc/stat"))
    }

    /// `cpu user nice system idle iowait irq softirq steal …`; old kernels have fewer.
    fn parse(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks = line.unwrap_or_default().split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(|ticks| ticks.parse().unwrap_or(0)).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        Self {
            idle: at(3).saturating_add(at(4)),
            total: ticks
                .iter()
                .fold(0, |sum, ticks| sum.saturating_add(*ticks)),
            steal: ticks.get(7).copied(),
        }
    }

    /// Since the boot, of all processors together.
    pub fn steal_ms(&self) -> Option<u64> {
        Some(bounded(self.steal?.saturating_mul(TICK_MS)))
    }

    /// From 0 to 100; `None` if no time has passed. A counter that decreased, which iowait may
    /// do, counts as unchanged.
    pub fn percent_since(&self, before: &Self) -> Option<f64> {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle).min(total);
        (total > 0).then(|| (total - idle) as f64 / total as f64 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn iowait_is_idle_and_steal_is_busy() {
        let before = Times::parse("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 2 3\n");
        let after = Times::parse("cpu  110 5 105 860 10 0 0 10 90 0\n");
        assert_eq!(after.percent_since(&before), Some(30.0));
        assert_eq!((before.steal_ms(), after.steal_ms()), (Some(0), Some(100)));
    }

    #[test]
    fn unchanged_counters_and_old_kernels_cause_no_division_by_zero() {
        let old = Times::parse("cpu 10 0 10 80\n");
        assert_eq!(old.percent_since(&Times::default()), Some(20.0));
        assert_eq!(old.percent_since(&old), None);
        assert_eq!(old.steal_ms(), None);
        assert_eq!(Times::parse("").percent_since(&old), None);
        assert_eq!(Times::parse("intr 5\ncpu0 1 2 3 4\n"), Times::default());
    }

    proptest! {
        #[test]
        fn the_percentage_is_within_0_and_100(before in ".{0,80}", numbers in prop::collection::vec(any::<u64>(), 0..12)) {
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            let after = Times::parse(&format!("cpu  {}", numbers.join(" ")));
            let before = Times::parse(&before);
            let percent = after.percent_since(&before).unwrap_or(0.0);
            prop_assert!((0.0..=100.0).contains(&percent));
        }
    }
}
