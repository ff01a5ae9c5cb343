//! Free TCP ports for servers that are stopped and started again on the same one.
//!
//! They are taken from below the range that the kernel gives to outgoing connections: a port of
//! that range may be somebody's source port by the time a stopped server wants it back. A port
//! found free may still be taken before its server binds it, so starting a server is what is
//! retried.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;

const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
const TRIES: u16 = 200;

/// A port of 127.0.0.1 that nobody listens on now.
pub fn free_port() -> anyhow::Result<u16> {
    (0..TRIES)
        .map(|_| random_port())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port on 127.0.0.1")
}

/// Every `RandomState` has keys of its own: enough chance for a port, without a dependency.
fn random_port() -> u16 {
    let chance = RandomState::new().hash_one(std::process::id());
    FIRST + (chance % u64::from(COUNT)) as u16
}
