//! Lists of networks, such as those of trusted proxies.

use std::net::IpAddr;

/// Networks that the operator lists.
#[derive(Clone, Debug, Default)]
pub struct Networks(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Networks {
    /// Reads networks (`10.0.0.0/8`) or addresses, separated by commas.
    pub fn parse(text: &str) -> Option<Self> {
        let networks = text.split(',').map(|text| Network::parse(text.trim()));
        networks.collect::<Option<_>>().map(Self)
    }

    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(longest), |prefix| prefix.parse().ok())?;
        (prefix <= longest).then_some(Self { address, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - self.prefix).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let networks = Networks::parse("10.1.0.0/16, 192.0.2.7,2001:db8::/32,0.0.0.0/32").unwrap();
        let contains = |text: &str| networks.contain(text.parse().unwrap());
        for inside in [
            "10.1.255.1",
            "192.0.2.7",
            "2001:db8:1::1",
            "::ffff:10.1.2.3",
        ] {
            assert!(contains(inside), "{inside}");
        }
        for outside in ["10.2.0.1", "192.0.2.8", "2001:db9::1", "::1", "1.2.3.4"] {
            assert!(!contains(outside), "{outside}");
        }
        assert!(
            Networks::parse("0.0.0.0/0")
                .unwrap()
                .contain("1.2.3.4".parse().unwrap())
        );
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/x",
            "example.com",
            "10.0.0.1,,",
        ] {
            assert!(Networks::parse(bad).is_none(), "{bad}");
        }
    }
}
