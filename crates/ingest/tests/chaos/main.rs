//! The promises with a figure in them, held to it: run by `make chaos`, on the
//! release build and an otherwise idle machine, printing what was measured.
//!
//! Nothing here runs in `cargo test`, which shows the same behaviours without
//! asking for speed.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of tests may fail as loudly as the tests, and figures are printed"
)]

#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../it/agents.rs"]
mod agents;
mod approvals;
mod cold_starts;
mod figures;
#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../harness/mod.rs"]
mod harness;
mod revocations;
