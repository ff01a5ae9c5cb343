//! Tests that need a real machine: killed processes, full disks, and the values of other tools.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod full_disk;
mod killed;
mod node_exporter;
mod other_tools;
mod size;
mod spool_writer;
