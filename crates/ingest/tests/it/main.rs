//! The service from outside, on a real PostgreSQL: one binary, a module a theme.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod config;
mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod jwks;
mod key_file;
mod key_races;
