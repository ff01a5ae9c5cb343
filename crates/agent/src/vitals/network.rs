//! Bytes received and sent since the boot, from /proc/net/dev, over the machine's own
//! interfaces (`machine/interfaces.rs`).

use crate::machine::{Machine, clamp_to_i64};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub received: u64,
    pub sent: u64,
}

impl Totals {
    pub fn read(machine: &Machine) -> Self {
        let counted = machine.interfaces();
        Self::parse(&machine.text("/proc/net/dev"), |name| {
            counted.iter().any(|counted| counted == name)
        })
    }

    fn parse(text: &str, is_counted: impl Fn(&str) -> bool) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let counted = lines.filter(|(name, _)| is_counted(name.trim()));
        counted.fold(Self::default(), |sum, (_, line)| sum.plus(line))
    }

    /// The first column is received bytes, the ninth sent bytes.
    fn plus(self, line: &str) -> Self {
        let column = |index| line.split_whitespace().nth(index)?.parse::<u64>().ok();
        let add = |sum: u64, index| clamp_to_i64(sum.saturating_add(column(index).unwrap_or(0)));
        Self {
            received: add(self.received, 0),
            sent: add(self.sent, 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive                        |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
  eth1: 10 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0
  bad0: x 1
";

    #[test]
    fn only_counted_interfaces_are_added_up() {
        let totals = Totals::parse(TEXT, |name| name != "lo");
        assert_eq!((totals.received, totals.sent), (1010, 202));
        assert_eq!(Totals::parse("", |_| true), Totals::default());
    }

    #[test]
    fn sums_stay_within_a_signed_64_bit_number() {
        let line = format!("{0} 0 0 0 0 0 0 0 {0}", u64::MAX);
        let totals = Totals::parse(&format!("a: {line}\nb: {line}\n"), |_| true);
        assert_eq!(
            (totals.received, totals.sent),
            (i64::MAX as u64, i64::MAX as u64)
        );
    }
}
