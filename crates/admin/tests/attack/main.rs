//! The ports under attack: slow clients, HTTP/2 floods, reset registrations, messages that
//! are never completed, and more clients than file
//! descriptors or places for connections.
//!
//! Each attack has a short form in `cargo test`, which shows that the protection works and needs no
//! fast machine, and a long form in `make attack`, which prints its measurements and checks the
//! figures of docs/reliability.md.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of tests may fail as loudly as the tests, and the figures are for people"
)]

mod file_descriptors;
mod floods;
mod http2;
mod many_clients;
mod not_reading;
mod open_files;
mod registrations;
mod slow_clients;
mod strangers;
mod witness;
