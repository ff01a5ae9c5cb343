//! The service from outside, on a real PostgreSQL: one binary, a module a theme.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod agents;
mod client_certificate;
mod config;
mod enrolment;
mod enrolment_races;
mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod hosts;
mod jwks;
mod key_file;
mod key_races;
mod tls_pair;
