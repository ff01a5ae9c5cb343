//! What the integration tests stand on: a [`Site`] (a database, certificates and
//! a signing key), the service on it, in this process ([`Instance`]) or as the
//! real binary ([`Process`]), and clients to speak to it.
//!
//! Every wait is bounded by [`PATIENCE`], which no slow machine runs into.

mod client;
mod instance;
mod process;
mod site;

use std::time::Duration;

pub use client::*;
pub use instance::*;
pub use process::*;
pub use site::*;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `check` is true, and fails naming `what` if it never is.
pub async fn eventually(what: &str, check: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    svc_sandbox::eventually(what, PATIENCE, check).await
}

/// Some tests hold many connections: take as many files as the hard limit allows.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may always be raised");
}
