//! Which hosts are reached without the proxy: the entries of `no_proxy`, by the rules that
//! curl and Go share.
//!
//! | entry | covers |
//! |---|---|
//! | `*` | every host |
//! | `example.org` or `.example.org` | the host of this name, and all names below it |
//! | `10.0.0.1` | this IP address |
//! | `10.0.0.0/8` | the IP addresses of this network |
//!
//! An entry with a port covers that port alone.

use std::net::IpAddr;

use super::Address;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exceptions(Vec<Exception>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    Domain(String),
    Network(IpAddr, u32),
}

impl Exceptions {
    /// Entries are separated by commas or spaces.
    pub fn parse(text: &str) -> Self {
        let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty());
        Self(entries.map(Exception::parse).collect())
    }

    pub(super) fn cover(&self, address: &Address) -> bool {
        self.0.iter().any(|exception| exception.covers(address))
    }
}

impl Exception {
    fn parse(entry: &str) -> Self {
        // The colons of an IPv6 address without brackets do not begin a port.
        let with_port = entry.rsplit_once(':').filter(|_| network(entry).is_none());
        let with_port = with_port.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let host = with_port.map_or(entry, |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        let hosts = match host {
            "*" => Hosts::All,
            _ => network(host).unwrap_or_else(|| {
                let domain = host.strip_prefix("*.").unwrap_or(host);
                Hosts::Domain(domain.trim_matches('.').to_lowercase())
            }),
        };
        let port = with_port.map(|(_, port)| port);
        Self { hosts, port }
    }

    fn covers(&self, address: &Address) -> bool {
        let hosts = match &self.hosts {
            Hosts::All => true,
            Hosts::Domain(domain) => is_within(&address.host, domain),
            Hosts::Network(network, bits) => {
                let ip = address.host.parse::<IpAddr>();
                ip.is_ok_and(|ip| shares_prefix(ip, *network, *bits))
            }
        };
        hosts && self.port.is_none_or(|port| port == address.port)
    }
}

/// An IP address, or a network.
fn network(text: &str) -> Option<Hosts> {
    let (ip, bits) = match text.split_once('/') {
        Some((ip, bits)) => (ip.parse().ok()?, Some(bits.parse().ok()?)),
        None => (text.parse::<IpAddr>().ok()?, None),
    };
    let most = if ip.is_ipv6() { 128 } else { 32 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some(Hosts::Network(ip, bits))
}

fn is_within(host: &str, domain: &str) -> bool {
    let host = host.trim_end_matches('.').to_lowercase();
    let above = host.strip_suffix(domain);
    !domain.is_empty() && above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

fn shares_prefix(ip: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(entries: &str, address: &str) -> bool {
        Exceptions::parse(entries).cover(&address.parse().unwrap())
    }

    #[test]
    fn names_cover_the_names_below_them() {
        for entry in [
            "example.org",
            ".example.org",
            "*.example.org",
            "a, EXAMPLE.org",
        ] {
            assert!(covers(entry, "example.org"), "{entry}");
            assert!(covers(entry, "ingest.Example.org"), "{entry}");
            assert!(!covers(entry, "anexample.org"), "{entry}");
            assert!(!covers(entry, "example.org.evil"), "{entry}");
        }
        assert!(covers("*", "anything"));
        assert!(!covers("", "anything") && !covers(".", "anything"));
        assert!(covers("a.example:9443", "a.example") && !covers("a.example:80", "a.example"));
    }

    #[test]
    fn ip_addresses_are_covered_by_their_networks() {
        assert!(covers("10.0.0.0/8", "10.9.8.7") && !covers("10.0.0.0/8", "11.0.0.1"));
        assert!(covers("0.0.0.0/0", "11.0.0.1") && !covers("0.0.0.0/0", "::1"));
        assert!(covers("10.0.0.1", "10.0.0.1") && !covers("10.0.0.1", "10.0.0.2"));
        assert!(covers("fd00::/8", "fd12::1") && covers("[::1]:9443", "::1"));
        assert!(covers("::1", "::1") && !covers("10.0.0.0/33", "10.0.0.1"));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "[ -~]{0,40}") {
            covers(&text, "10.0.0.1");
            covers(&text, "a.example");
        }
    }
}
