//! The agent against the real service, on a real PostgreSQL: one binary, a module a
//! theme. The service's own test harness is used as it stands.

#![expect(
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

#[expect(dead_code, reason = "the service's tests use the rest")]
#[path = "../../../ingest/tests/it/agents.rs"]
mod agents;
mod clones;
mod commands;
mod connection;
mod day;
mod enrolment;
#[expect(dead_code, reason = "the service's tests use the rest")]
#[path = "../../../ingest/tests/harness/mod.rs"]
mod harness;
mod played;
mod process;
mod settings;
mod trust;
