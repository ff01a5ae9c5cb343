//! The machine's hardware (MAC) and IP addresses.
//!
//! Hardware addresses are those of the machine's own interfaces; addresses assigned by a
//! manufacturer come before those assigned by software. IP addresses are all local addresses
//! in the kernel's tables, except loopback and link-local ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use svc_proto::contract::limits::MAX_LIST_ENTRIES;

use crate::machine::Machine;

const LOCALLY_ADMINISTERED: u8 = 0b10;
const GROUP: u8 = 0b01;

pub(super) fn hardware(machine: &Machine) -> Vec<String> {
    let mut found: Vec<[u8; 6]> = Vec::new();
    for name in machine.interfaces() {
        let address = hardware_of(machine, &name).filter(|address| !found.contains(address));
        found.extend(address);
    }
    found.sort_by_key(|address| address[0] & LOCALLY_ADMINISTERED);
    found.iter().take(MAX_LIST_ENTRIES).map(shown).collect()
}

/// The members of a bond share one address; their own is in another file.
fn hardware_of(machine: &Machine, name: &str) -> Option<[u8; 6]> {
    let files = ["bonding_slave/perm_hwaddr", "address"];
    let mut lines = files
        .map(|file| machine.line(&format!("/sys/class/net/{name}/{file}")))
        .into_iter();
    lines.find_map(|line| parse_hardware(&line))
}

fn parse_hardware(text: &str) -> Option<[u8; 6]> {
    let octets = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok());
    let address: [u8; 6] = octets.collect::<Option<Vec<u8>>>()?.try_into().ok()?;
    (address != [0; 6] && address[0] & GROUP == 0).then_some(address)
}

fn shown(address: &[u8; 6]) -> String {
    let [a, b, c, d, e, f] = address;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

pub(super) fn internet(machine: &Machine) -> Vec<String> {
    let mut found = version_4(&machine.text("/proc/net/fib_trie"));
    found.extend(version_6(&machine.text("/proc/net/if_inet6")));
    found.truncate(MAX_LIST_ENTRIES);
    found.iter().map(IpAddr::to_string).collect()
}

/// An address is on a line of its own, `|-- 192.0.2.2`, and its type on the next one,
/// `/32 host LOCAL`. The file may contain the table twice.
fn version_4(fib_trie: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut address: Option<Ipv4Addr> = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("|-- ") {
            address = text.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(address.filter(is_global_4).map(IpAddr::V4));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn is_global_4(address: &Ipv4Addr) -> bool {
    !address.is_loopback() && !address.is_link_local()
}

/// Each line begins with the address in 32 digits.
fn version_6(if_inet6: &str) -> Vec<IpAddr> {
    let words = if_inet6
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let digits = words.filter(|word| word.len() == 32);
    let addresses = digits.filter_map(|word| u128::from_str_radix(word, 16).ok());
    let mut found: Vec<IpAddr> = addresses
        .map(Ipv6Addr::from)
        .filter(is_global_6)
        .map(IpAddr::V6)
        .collect();
    found.sort_unstable();
    found
}

fn is_global_6(address: &Ipv6Addr) -> bool {
    !address.is_loopback() && !address.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::machine::tests::machine;

    #[test]
    fn addresses_assigned_by_a_manufacturer_come_first() {
        let (_dir, machine) = machine(&[
            ("/sys/class/net/a/device/x", ""),
            ("/sys/class/net/a/address", "52:54:00:00:00:01\n"),
            ("/sys/class/net/b/device/x", ""),
            ("/sys/class/net/b/address", "52:54:00:00:00:01\n"),
            (
                "/sys/class/net/b/bonding_slave/perm_hwaddr",
                "00:1B:21:AA:BB:CC\n",
            ),
            ("/sys/class/net/c/device/x", ""),
            ("/sys/class/net/c/address", "00:00:00:00:00:00\n"),
            ("/sys/class/net/d/device/x", ""),
            (
                "/sys/class/net/d/address",
                "80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:7b:cb:a1",
            ),
        ]);
        assert_eq!(
            hardware(&machine),
            ["00:1b:21:aa:bb:cc", "52:54:00:00:00:01"]
        );
    }

    #[test]
    fn addresses_are_read_from_the_kernels_tables() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                    |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.2\n        /32 host LOCAL\n     \
                    |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let (_dir, machine) = machine(&[
            ("/proc/net/fib_trie", &format!("{trie}{trie}")),
            (
                "/proc/net/if_inet6",
                "20010db8000000000000000000000002 04 40 00 82 eth0\n\
                 fe8000000000000000fc00fffe000001 04 40 20 80 eth0\n\
                 00000000000000000000000000000001 01 80 10 80 lo\n",
            ),
        ]);
        assert_eq!(internet(&machine), ["192.0.2.2", "2001:db8::2"]);
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "[ -~\n]{0,300}") {
            version_4(&text);
            version_6(&text);
            parse_hardware(&text);
        }
    }
}
