//! The client's address: the peer's, unless the peer is a proxy that may name another.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::{Extensions, HeaderMap};
use svc_common::networks::Networks;

/// The other end of the connection, as the listener saw it.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The client of a request. X-Forwarded-For is read from the right: each trusted proxy appended the
/// address that it saw, and everything left of the first stranger is the stranger's own claim.
pub fn client(extensions: &Extensions, headers: &HeaderMap, proxies: &Networks) -> Option<IpAddr> {
    let Peer(peer) = extensions.get()?;
    let mut client = peer.ip().to_canonical();
    let named = headers.get_all("x-forwarded-for").iter();
    let named = named.filter_map(|value| value.to_str().ok());
    let named: Vec<&str> = named.flat_map(|value| value.split(',')).collect();
    for name in named.into_iter().rev() {
        if !proxies.contain(client) {
            break;
        }
        match name.trim().parse::<IpAddr>() {
            Ok(before) => client = before.to_canonical(),
            Err(_) => break,
        }
    }
    Some(client)
}

/// What one customer of a provider has: an IPv4 address, or a /64 of IPv6.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(forwarded: &str, proxies: &str) -> String {
        let mut extensions = Extensions::new();
        extensions.insert(Peer("10.0.0.1:5000".parse().unwrap()));
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", forwarded.parse().unwrap());
        let proxies = Networks::parse(proxies).unwrap();
        client(&extensions, &headers, &proxies).unwrap().to_string()
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("10.1.2.3"), "10.1.2.3");
    }

    #[test]
    fn only_trusted_proxies_name_the_client() {
        assert_eq!(of("1.1.1.1", "192.0.2.0/24"), "10.0.0.1");
        assert_eq!(of("1.1.1.1", "10.0.0.1"), "1.1.1.1");
        assert_eq!(of("6.6.6.6, 1.1.1.1", "10.0.0.0/8"), "1.1.1.1");
        assert_eq!(of("1.1.1.1, 10.0.0.2", "10.0.0.1,10.0.0.2"), "1.1.1.1");
        assert_eq!(of("nonsense", "10.0.0.1"), "10.0.0.1");
    }
}
