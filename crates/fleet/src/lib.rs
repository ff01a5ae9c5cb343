//! The fleet lab: tens of thousands of virtual agents, scenarios and benchmarks for svc-ingest.
//!
//! The lab uses the service only from outside: the wire contract, the binary, the HTTP port, and the
//! tables that users read. So it measures what a user would see.
//!
//! In reading order:
//!
//! - [`agent`]: one virtual agent in one task. It is built from [`identity`] (its key and machine),
//!   [`tls`], [`wire`] (its messages) and [`svc_harness::Ledger`] (its record of what was acknowledged).
//! - [`worker`]: a process that runs many agents. [`plan`] has the messages between it and its parent,
//!   [`stats`] what it counts, [`state`] what it keeps between runs.
//! - [`fleet`]: all workers as one: orders, totals, and waits with a deadline.
//! - [`run`]: `svc-fleet run`, a fleet against a running service, with an audit and a report.
//! - [`lab`]: a complete system: PostgreSQL and instances of the real binary. [`procfs`] measures its
//!   processes.
//! - [`figures`]: tables, and goals that figures must meet.
//! - [`mod@bench`]: `svc-fleet bench`, the cost of the service beside its lower bounds, and `svc-fleet scenario`,
//!   faults and what must hold.
//! - [`simulate`]: `svc-fleet simulate`, ten million agents in fifty cells as a model of discrete events.
//! - [`cli`]: the command line.

pub mod agent;
pub mod identity;
pub mod tls;
pub mod wire;

pub mod plan;
pub mod state;
pub mod stats;
pub mod worker;

pub mod fleet;
pub mod run;

pub mod figures;
pub mod lab;
pub mod procfs;

pub mod bench;
pub mod cli;
pub mod simulate;
