//! The program `svc-ingest`: the service, and the commands for its administrators. [`cli`] has one module for each noun.
//!
//! The tests of the whole service are in this crate's folder `tests`, because Cargo builds a program for the tests of its own
//! package only.

pub mod cli;
