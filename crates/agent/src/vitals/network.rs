//! Bytes received and sent, from /proc/net/dev, for each of the machine's own interfaces
//! (`machine/interfaces.rs`).
//!
//! A driver that is reset counts from 0 again. The total of all interfaces then falls, which
//! looks like a reboot after which everything was transferred at once; the counters of each
//! interface show what happened.

use svc_proto::v1::Interface;

use crate::machine::{Machine, bounded, clean};

pub(super) fn interfaces(machine: &Machine) -> Vec<Interface> {
    let counted = machine.interfaces();
    parse(&machine.text("/proc/net/dev"), |name| {
        counted.iter().any(|counted| counted == name)
    })
}

/// The sum over all interfaces.
pub(super) fn total(interfaces: &[Interface], bytes: fn(&Interface) -> u64) -> u64 {
    let sum = |sum: u64, interface| sum.saturating_add(bytes(interface));
    bounded(interfaces.iter().fold(0, sum))
}

/// Sorted by name, because the kernel's order changes when an interface is added again.
fn parse(text: &str, is_counted: impl Fn(&str) -> bool) -> Vec<Interface> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(name, line)| (name.trim(), line));
    let counted = lines.filter(|(name, _)| is_counted(name));
    let mut interfaces: Vec<Interface> = counted.map(interface).collect();
    interfaces.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    interfaces
}

/// The first column is received bytes, the ninth sent bytes.
fn interface((name, line): (&str, &str)) -> Interface {
    let column = |index| line.split_whitespace().nth(index)?.parse::<u64>().ok();
    let bytes = |index| bounded(column(index).unwrap_or(0));
    Interface {
        name: clean(name),
        rx_bytes: bytes(0),
        tx_bytes: bytes(8),
    }
}

#[cfg(test)]
mod tests {
    use svc_proto::contract::limits::MAX_NUMBER;

    use super::*;

    const TEXT: &str = "Inter-|   Receive                        |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth1: 10 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
  bad0: x 1
";

    #[test]
    fn counted_interfaces_are_listed_and_added_up() {
        let interfaces = parse(TEXT, |name| name != "lo");
        let listed = interfaces.iter();
        let listed: Vec<_> = listed
            .map(|one| (one.name.as_str(), one.rx_bytes, one.tx_bytes))
            .collect();
        assert_eq!(
            listed,
            [("bad0", 0, 0), ("eth0", 1000, 200), ("eth1", 10, 2)]
        );
        assert_eq!(total(&interfaces, |one| one.rx_bytes), 1010);
        assert_eq!(total(&interfaces, |one| one.tx_bytes), 202);
        assert!(parse("", |_| true).is_empty());
    }

    #[test]
    fn sums_stay_within_the_limit_of_a_sample() {
        let line = format!("{0} 0 0 0 0 0 0 0 {0}", u64::MAX);
        let interfaces = parse(&format!("a: {line}\nb: {line}\n"), |_| true);
        assert_eq!(interfaces[0].rx_bytes, MAX_NUMBER);
        assert_eq!(total(&interfaces, |one| one.tx_bytes), MAX_NUMBER);
    }
}
