//! Tests that need a real machine: killed processes, full disks, and the values of other tools.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod full_disk;
mod killed;
mod other_tools;
mod spool_writer;
