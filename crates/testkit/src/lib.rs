//! What the tests of all crates and the fleet lab share.
//!
//! In reading order:
//! - [`Site`] is where services run: a database, certificates, a signing key and a metrics queue. [`Held`] is a lock on its
//!   tables.
//! - [`Instance`] is the service in this process, [`ServiceProcess`] the real binary as a child
//!   process; [`Program`] and [`Process`] run any other binary of the workspace.
//! - [`Tls`], [`channel`] and [`get`] are clients. [`FakeAgent`], [`ActiveAgent`] and
//!   [`HeartbeatCall`] speak the wire contract as an agent does.
//! - [`Fleet`] is many agents that report, reconnect and keep a [`Ledger`] each. [`AuditReport`]
//!   compares the ledgers with what PostgreSQL has stored.
//! - [`Proxy`] is a network with faults. [`faults`] has the scenarios that `cargo test` runs
//!   briefly and `make chaos` at full length.
//! - [`Verifier`] is a third party that verifies the agents' JWTs.
//! - [`metric`], [`Usage`] and [`Latencies`] measure. [`SampleWriter`] writes samples without the service.
//!
//! Every wait is bounded by [`PATIENCE`], which is generous enough for a slow machine.

#![expect(
    clippy::expect_used,
    reason = "helpers of tests may panic as the tests may"
)]

mod held;
mod site;

mod instance;
mod process;
mod service;

mod agent;
mod heartbeat;
mod http;
mod tls;
mod verifier;

mod audit;
mod clock;
mod fleet;
mod ledger;
mod presence;

pub mod faults;
mod proxy;
mod seed;

mod latencies;
mod sizing;
mod usage;
mod writer;

use std::time::Duration;

pub use agent::{
    AUTO, ActiveAgent, FakeAgent, MANUAL, ONE_USE, REINSTALL, RefusedCall, Registering, TokenRules,
    is_active, machine, token,
};
pub use audit::{AuditReport, Tables};
pub use fleet::{Fleet, Pace};
pub use heartbeat::{HeartbeatCall, framed, large_report, request, sample, wire_time};
pub use held::Held;
pub use http::{
    Answer, get, health_becomes, http, metric, metric_becomes, runs_again, transaction_count,
    transactions,
};
pub use instance::{Instance, InstanceBuilder, Stopping};
pub use latencies::Latencies;
pub use ledger::{Balance, Ledger, Settled, Taken};
pub use presence::{PresenceSampler, presence_digest, times_offline};
pub use process::{Finished, Process, Program};
pub use proxy::Proxy;
pub use seed::{ABSENT, SAME_KEY, absent_instance, range, seed};
pub use service::{ServiceBuilder, ServiceProcess};
pub use site::{Environment, QueueKind, SIGNING_KEY, Site, write_private};
pub use sizing::{documented_memory, documented_strangers};
pub use svc_ingest::listener::provider as service_provider;
pub use tls::{OneConnection, Tls, channel, connect_with, grpc_call, provider};
pub use usage::Usage;
pub use verifier::{Verifier, kid};
pub use writer::SampleWriter;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Nothing listens there.
const NO_DATABASE: &str = "postgres://svc@127.0.0.1:1/svc";

/// Waits until `check` is true. The error names `what`.
pub async fn eventually(what: &str, check: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    svc_sandbox::eventually(what, PATIENCE, check).await
}

/// Panics, with the whole text, unless it contains `part`.
#[track_caller]
pub fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

/// Raises the limit of open files to the hard limit, for tests with many connections.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("a process may raise its soft limit");
}
