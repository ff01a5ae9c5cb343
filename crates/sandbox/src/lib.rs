//! A whole system on one machine: real PostgreSQL, PgBouncer and NATS servers and certificates, for
//! `svc-dev`, the tests and the benchmarks.
//!
//! Invariant: nothing outlives the process that started it. The servers end with it, even when it is
//! killed with SIGKILL, and the next process removes what it left in the temporary folder. Tests run
//! against the real servers because the service promises to survive the faults of these.
//!
//! In reading order:
//! - [`Postgres`], [`PgBouncer`] and [`Nats`] are the servers. Each can be stopped, started again on
//!   its port and frozen.
//! - [`test_database`] gives each test a database of its own, cloned from a template on
//!   [`shared_postgres`].
//! - [`Identity`] and [`Authority`] make keys and certificates.
//! - [`dying_with_us`] and [`Process`] run any other program with the same guarantee.
//! - [`eventually`] waits for a condition, [`becomes`] for the answer of a statement, for a bounded time. [`free_port`] finds a port.

mod bouncer;
mod nats;
mod postgres;
mod test_database;

mod folder;
mod freeze;
mod programs;
mod server;

mod child;
mod process;

mod eventually;
mod pki;
mod ports;

pub use bouncer::PgBouncer;
pub use child::{dying_with_us, spawn};
pub use eventually::{becomes, eventually};
pub use nats::{Nats, NatsOptions};
pub use pki::{Authority, Identity};
pub use ports::free_port;
pub use postgres::{PRODUCTION, Postgres, PostgresOptions, query};
pub use process::Process;
pub use test_database::{TestDatabase, shared_postgres, test_database};
