//! The store against a real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of tests may fail, and speak, as loudly as the tests"
)]

mod agent_life;
mod books;
mod bouncer;
mod document;
mod faults;
mod leases;
mod listening;
mod migrations;
mod plans;
mod retention;
mod rollup_oracle;
mod rollups;
mod samples;
mod sizing;
mod support;
mod telling;
mod tls;
mod transactions;
mod web_role;
