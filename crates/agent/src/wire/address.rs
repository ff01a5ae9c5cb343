//! The addresses of the service: one name behind a load balancer, or several instances.

use std::{fmt, str::FromStr};

use rustls_pki_types::ServerName;

const DEFAULT_PORT: u16 = 9443;

/// A host, a port, and the name that the server's certificate must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
    pub(crate) name: ServerName<'static>,
}

impl FromStr for Address {
    type Err = String;

    /// `host`, `host:port` or `[v6]:port`, each with an optional `https://`.
    fn from_str(text: &str) -> Result<Self, String> {
        let given = text.strip_prefix("https://").unwrap_or(text);
        Self::parse(given.strip_suffix('/').unwrap_or(given), DEFAULT_PORT)
    }
}

impl Address {
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let (host, port) = split(text, default_port)?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| "is neither a host's name nor an IP address".to_owned())?;
        Ok(Self {
            host: host.into(),
            port,
            name,
        })
    }
}

/// Splits host and port. An IPv6 address with a port needs brackets.
fn split(text: &str, default_port: u16) -> Result<(&str, u16), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("has a bracket too few")?;
        return Ok((host, port(rest.strip_prefix(':'), default_port)?));
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, default_port)),
        Some((host, rest)) => Ok((host, port(Some(rest), default_port)?)),
        None => Ok((text, default_port)),
    }
}

fn port(text: Option<&str>, default_port: u16) -> Result<u16, String> {
    match text.map(str::parse) {
        None => Ok(default_port),
        Some(Ok(port)) if port > 0 => Ok(port),
        _ => Err("has no port between 1 and 65535".into()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// All addresses, used in turn from a random one on, so that a fleet spreads over them. There is
/// at least one, because the settings require it.
#[derive(Clone, Debug)]
pub struct Addresses {
    all: Vec<Address>,
    turn: usize,
}

impl Addresses {
    pub fn new(all: Vec<Address>) -> Self {
        let turn = rand::random_range(0..all.len());
        Self { all, turn }
    }

    /// The address to use now.
    pub fn current(&self) -> &Address {
        self.at(self.turn)
    }

    pub fn advance(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// The address after the current one.
    pub fn other(&self) -> &Address {
        self.at(self.turn.wrapping_add(1))
    }

    fn at(&self, turn: usize) -> &Address {
        &self.all[turn % self.all.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_an_optional_port() {
        for (text, shown) in [
            ("ingest.example", "ingest.example:9443"),
            ("ingest.example:443", "ingest.example:443"),
            ("https://ingest.example:443/", "ingest.example:443"),
            ("10.0.0.1", "10.0.0.1:9443"),
            ("::1", "[::1]:9443"),
            ("[::1]:9000", "[::1]:9000"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for bad in [
            "", ":9443", "a:0", "a:65536", "a:x", "a b", "[::1", "http://a", "a/b",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_are_used_in_turn() {
        let all: Vec<Address> = ["a", "b", "c"].map(|a| a.parse().unwrap()).into();
        let mut addresses = Addresses::new(all);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let next = addresses.other().clone();
            seen.push(addresses.current().host.clone());
            addresses.advance();
            assert_eq!(*addresses.current(), next);
        }
        seen.sort();
        assert_eq!(seen, ["a", "b", "c"]);
    }
}
