//! `svc-ingest`: the front door of a fleet, between host agents and PostgreSQL.
//!
//! The way of the data is the way through the modules: [`listener`] (accept, TLS,
//! HTTP/2) to [`grpc`] (the protocol's edge) and on to PostgreSQL, through the
//! crate `svc-store`. Beside them stand the signing key, the HTTP port, presence,
//! and what holds the process together. ARCHITECTURE.md is the map.

pub mod changes;
pub mod cli;
pub mod clock;
pub mod config;
pub mod consumer;
pub mod enrol;
pub mod freshness;
pub mod grpc;
pub mod health;
pub mod http;
pub mod lease;
pub mod listener;
pub mod maintenance;
pub mod peer;
pub mod periodic;
pub mod queue;
pub mod rate;
pub mod server;
pub mod session;
pub mod signing;
pub mod startup;
pub mod supervise;
pub mod telemetry;

/// The version that the service reports of itself.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
