//! The store against a real PostgreSQL, through its public API.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test helpers may panic and print like the tests that call them"
)]

mod activity;
mod agent_status;
mod autovacuum;
mod books;
mod bouncer;
mod compaction;
mod compaction_faults;
mod document;
mod fixtures;
mod fleet_gauges;
mod fleet_pictures;
mod isolation;
mod labels;
mod leases;
mod listen;
mod liveness;
mod locked_rows;
mod migrations;
mod newcomers;
mod parts;
mod plans;
mod replication;
mod retention;
mod rollouts;
mod rollup_oracle;
mod rollups;
mod same_machine;
mod sample_bounds;
mod samples;
mod session_digest;
mod settings;
mod sizing;
mod statements;
mod support;
mod tls;
mod tokens;
mod trust;
mod web_role;
