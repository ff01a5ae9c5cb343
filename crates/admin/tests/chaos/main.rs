//! The promises with figures: run by `make chaos` with an optimised build on an idle machine;
//! prints the measurements.
//!
//! Most of these tests wait most of the time, so `make chaos` runs three of them at once. The tests in
//! [`alone`] come afterwards, one at a time.
//!
//! `cargo test` shows the same behaviour without strict times.

#![expect(clippy::print_stdout, reason = "people read the figures")]

mod agent_keys;
mod alone;
mod key_rotation;
mod load_balancers;
mod memory;
mod nats_cluster;
mod not_reading;
mod outages;
mod pipeline;
mod registrations;
mod steady_fleet;
mod streams;
mod write_limits;
