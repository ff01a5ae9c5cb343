//! The store against a real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod agent_life;
mod bouncer;
mod faults;
mod leases;
mod listening;
mod migrations;
mod retention;
mod rollup_oracle;
mod rollups;
mod samples;
mod support;
mod telling;
mod tls;
mod transactions;
mod web_role;
