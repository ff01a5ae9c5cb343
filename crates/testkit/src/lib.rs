//! What the tests of all crates share. What needs no service in this process is in [`svc_harness`]; tests import it from
//! here.
//!
//! In reading order:
//! - [`Site`] is where services run: a database, certificates, a signing key and a metrics queue. [`Held`] is a lock on its
//!   tables.
//! - [`Instance`] is the service in this process, [`ServiceProcess`] the real binary as a child
//!   process; [`Program`] and [`Process`] run any other binary of the workspace.
//! - [`Tls`], [`channel`] and [`get`] are clients. [`FakeAgent`], [`ActiveAgent`] and
//!   [`HeartbeatCall`] speak the wire contract as an agent does.
//! - [`Fleet`] is many agents that report, reconnect and keep a ledger each, which
//!   [`svc_harness::AuditReport`] compares with what PostgreSQL has stored.
//! - [`Proxy`] is a network with faults. [`faults`] has the scenarios that `cargo test` runs
//!   briefly and `make chaos` at full length.
//! - [`Verifier`] is a third party that verifies the agents' JWTs.
//! - [`metric`], [`Usage`] and [`Latencies`] measure.
//!
//! Every wait is bounded by [`PATIENCE`], which is generous enough for a slow machine.

#![expect(
    clippy::expect_used,
    reason = "helpers of tests may panic as the tests may"
)]

mod held;
mod site;

mod instance;

mod agent;
mod grpc;
mod heartbeat;
mod new_key;
mod verifier;

pub mod cells;
mod clock;
mod fleet;
mod presence;

pub mod faults;
mod proxy;
mod seed;

mod latencies;
mod sizing;

pub use agent::{
    AUTO, ActiveAgent, FakeAgent, MANUAL, ONE_USE, REINSTALL, RefusedCall, Registering, TokenRules,
    is_active, machine, token,
};
pub use fleet::{Fleet, KeyCounts, Pace};
pub use grpc::{OneConnection, channel, grpc_call};
pub use heartbeat::{HeartbeatCall, framed, large_report, request, sample, wire_time};
pub use held::Held;
pub use instance::{Instance, InstanceBuilder, Stopping};
pub use latencies::Latencies;
pub use new_key::new_key;
pub use presence::{PresenceSampler, presence_digest, times_offline};
pub use proxy::Proxy;
pub use seed::{ABSENT, SAME_KEY, absent_instance, range, seed};
pub use site::{QueueKind, Site};
pub use sizing::{documented_memory, documented_strangers};
pub use svc_harness::{
    Environment, Finished, PATIENCE, Process, Program, SIGNING_KEY, ServiceBuilder, ServiceProcess,
    Tables, Tls, Usage, connect_with, eventually, get, health_becomes, http, metric,
    metric_becomes, provider, raise_file_limit, runs_again, transaction_count, transactions,
    write_private,
};
pub use verifier::{Verifier, kid};

/// Panics, with the whole text, unless it contains `part`.
#[track_caller]
pub fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}
