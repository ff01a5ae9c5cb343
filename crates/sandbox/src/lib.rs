//! A whole system on one machine: real PostgreSQL, PgBouncer and NATS servers, certificates and a
//! fault-injecting proxy, for `svc-ingest dev`, the tests and the benchmarks.
//!
//! Invariant: nothing outlives the process that started it. Servers die with it, even when it is
//! killed with -9, and what it left in the temporary folder is swept by the next one. Tests run
//! against the real servers because their faults are what the service promises to survive.

mod bouncer;
mod child;
mod eventually;
mod folder;
mod freeze;
mod nats;
mod pki;
mod ports;
mod postgres;
mod programs;
mod proxy;
mod server;
mod test_database;

pub use bouncer::PgBouncer;
pub use child::{dying_with_us, spawn};
pub use eventually::eventually;
pub use nats::{Nats, NatsOptions};
pub use pki::{Authority, Identity};
pub use ports::free_port;
pub use postgres::{Postgres, PostgresOptions, query};
pub use proxy::{Direction, Proxy};
pub use test_database::{TestDatabase, shared_postgres, test_database};
