//! The front door under attack: slow clients, HTTP/2 floods, more clients than
//! files or places, and crowds.
//!
//! Each attack has a short form, part of `cargo test`, which shows that the
//! protection is there and asks nothing of the machine's speed; and a long form,
//! run by `make attack` on the release build, which prints what it measured and
//! holds it against the promises of docs/reliability.md.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of tests may fail as loudly as the tests, and the figures are for people"
)]

mod agent;
mod crowds;
mod files;
mod floods;
#[expect(dead_code, reason = "the other test binary uses the rest")]
#[path = "../harness/mod.rs"]
mod harness;
mod raw;
mod reading;
mod slow;
mod vitals;
