//! The fleet lab: virtual agents by the tens of thousands, scenarios and benchmarks for svc-ingest.
//!
//! Invariant: it knows the service only from outside: the wire contract, the binary, the HTTP port and
//! the tables that its users read. What is measured here is what a user would see.

pub mod agent;
pub mod bench;
pub mod cli;
pub mod fleet;
pub mod identity;
pub mod lab;
pub mod ledger;
pub mod plan;
pub mod proc;
pub mod run;
pub mod scenario;
pub mod state;
pub mod tally;
pub mod tls;
pub mod wire;
pub mod worker;
