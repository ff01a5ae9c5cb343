//! The ingest service between host agents and PostgreSQL. Its program and command line are in the crate `svc-admin`.
//!
//! ARCHITECTURE.md is the map. The modules in reading order, along the path of the data:
//!
//! 1. Before this crate, `svc-front`: accept, TLS, HTTP/2.
//! 2. [`grpc`]: the protocol's edge, with [`grpc::heartbeat`].
//! 3. [`enrol`]: tokens, machines, registration, JWTs; [`signing`] has the key.
//! 4. [`session`]: heartbeat streams as the instance and the database know them.
//! 5. Behind this crate, `svc-pipeline`: samples on their way into PostgreSQL.
//! 6. [`changes`], [`lease`] with [`load`], [`maintenance`]: what runs in the background; [`freshness`] says whether the view
//!    of the database may be acted on.
//! 7. [`config`], [`startup`], [`server`], [`supervise`]: how the process starts and ends.
//! 8. [`http`], [`health`], [`telemetry`]: what it shows about itself.
//!
//! Small tools: [`batched`], [`clock`], and those of `svc-common`: [`error_chain`], [`log_limit`], [`periodic`], [`rate`], [`sync`].
//! SQL is in the crate `svc-store` alone.

pub mod batched;
pub mod changes;
pub mod clock;
pub mod config;
pub mod enrol;
pub mod freshness;
pub mod grpc;
pub mod health;
pub mod http;
pub mod lease;
pub mod load;
pub mod maintenance;
pub mod server;
pub mod session;
pub mod signing;
pub mod startup;
pub mod supervise;
pub mod telemetry;

pub use svc_common::{VERSION, error_chain, log_limit, periodic, rate, sync};
