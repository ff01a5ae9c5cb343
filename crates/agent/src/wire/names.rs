//! The IP addresses behind a host's name. A name is looked up for every connection, so a
//! changed record is used at the next attempt.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use tokio::net::lookup_host;

use crate::sync::locked;

/// More addresses of one name are ignored.
const MOST: usize = 16;

/// Who knows the addresses: the system's resolver, or a test.
#[derive(Clone, Debug, Default)]
pub enum Names {
    #[default]
    OfTheSystem,
    /// Every name has these addresses, in this order.
    Given(Arc<Mutex<Vec<IpAddr>>>),
}

impl Names {
    /// The addresses, in the order of the resolver (RFC 6724).
    pub(super) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = match self {
            Self::OfTheSystem => lookup_host((host, port)).await?.take(MOST).collect(),
            Self::Given(given) => locked(given).iter().map(|ip| (*ip, port).into()).collect(),
        };
        match found.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "it has no address")),
            false => Ok(found),
        }
    }
}
