//! The service from outside: its programs as child processes, and what can be seen of them. The fleet lab and the tests of
//! all crates share it, and nothing here links the service.
//!
//! In reading order:
//! - [`Program`] and [`Process`] run any binary of the workspace. [`Environment`] is what an instance reads, and
//!   [`ServiceProcess`] is the real binary.
//! - [`Tls`], [`get`] and [`metric`] are clients: of the agents' port, of the HTTP port and of its metrics. [`Usage`] is
//!   what the kernel says.
//! - A [`Ledger`] is what an agent was acknowledged. [`AuditReport`] compares the ledgers with what PostgreSQL has
//!   stored.
//! - [`SampleWriter`] writes samples without the service.
//!
//! Every wait is bounded by [`PATIENCE`], which is generous enough for a slow machine.

mod environment;
mod process;
mod service;

mod http;
mod tls;
mod usage;

mod audit;
mod ledger;

mod writer;

use std::time::Duration;

pub use audit::{AuditReport, Tables};
pub use environment::{Environment, SIGNING_KEY, write_private};
pub use http::{
    Answer, get, health_becomes, http, metric, metric_becomes, runs_again, transaction_count,
    transactions,
};
pub use ledger::{Balance, Ledger, Settled, Taken};
pub use process::{Finished, Process, Program};
pub use service::{ServiceBuilder, ServiceProcess};
pub use tls::{Tls, connect_with, provider};
pub use usage::Usage;
pub use writer::SampleWriter;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Nothing listens there.
pub const NO_DATABASE: &str = "postgres://svc@127.0.0.1:1/svc";

/// Waits until `check` is true. The error names `what`.
pub async fn eventually(what: &str, check: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    svc_sandbox::eventually(what, PATIENCE, check).await
}

/// Raises the limit of open files to the hard limit, for many connections.
#[expect(
    clippy::expect_used,
    reason = "a process may raise its soft limit to the hard one"
)]
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("a process may raise its soft limit");
}
