//! The promises with figures: run by `make chaos` with an optimised build on an idle machine;
//! prints the measurements.
//!
//! `cargo test` shows the same behaviour without strict times.

#![expect(clippy::print_stdout, reason = "people read the figures")]

mod approvals;
mod cold_starts;
mod memory;
mod not_reading;
mod outages;
mod pipeline;
mod reconnect_storms;
mod revocations;
mod steady_fleet;
mod streams;
