//! The promises with a figure in them, held to it: run by `make chaos`, on the
//! release build and an otherwise idle machine, printing what was measured.
//!
//! Nothing here runs in `cargo test`, which shows the same behaviours without
//! asking for speed.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of tests may fail as loudly as the tests, and the figures are for people"
)]

#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../it/agents.rs"]
mod agents;
mod approvals;
#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../it/beats.rs"]
mod beats;
mod cold_starts;
mod deaf;
mod figures;
#[path = "../it/fleet.rs"]
mod fleet;
#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../harness/mod.rs"]
mod harness;
mod memory;
mod outages;
mod pipeline;
#[path = "../it/plant.rs"]
mod plant;
#[path = "../it/plant_faults.rs"]
mod plant_faults;
mod revocations;
#[path = "../it/scenes.rs"]
mod scenes;
mod steady;
mod storms;
mod streams;
