//! Free TCP ports for servers that are stopped and started again on the same port.
//!
//! The ports are below the range that the kernel uses for outgoing connections. A port in that
//! range may be the source port of a connection when a stopped server needs it again. A free port
//! may still be taken before the server binds it, so the start of a server is retried.

use std::{
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
};

use anyhow::Context;

const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
const TRIES: u16 = 200;

/// A port of 127.0.0.1 that has no listener.
pub fn free_port() -> anyhow::Result<u16> {
    (0..TRIES)
        .map(|_| random_port())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port on 127.0.0.1")
}

/// Every `RandomState` has random keys: random enough for a port, without a dependency.
fn random_port() -> u16 {
    let chance = RandomState::new().hash_one(std::process::id());
    FIRST + (chance % u64::from(COUNT)) as u16
}
