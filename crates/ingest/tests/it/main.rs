//! The service from outside, on a real PostgreSQL: one binary, a module a theme.

#![expect(
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod admin;
mod agents;
mod architecture;
mod bad_input;
mod beats;
mod client_certificate;
mod commands;
mod config;
mod cost;
mod enrolment;
mod enrolment_races;
mod faults;
mod fleet;
mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod heartbeat;
mod history;
mod hosts;
mod http_port;
mod jwks;
mod key_file;
mod key_races;
mod life_cycle;
mod pipeline;
mod pipeline_faults;
mod plant;
mod plant_faults;
mod queue;
mod scenes;
mod tls_pair;
