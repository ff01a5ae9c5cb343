//! The service from outside, on a real PostgreSQL: one binary, one module per theme.

#![expect(
    clippy::expect_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod admin;
mod agent_keys;
mod allocations;
mod architecture;
mod bad_input;
mod cells;
mod cited_tests;
mod client_certificate;
mod commands;
mod config;
mod database_connections;
mod database_setup;
mod decision_references;
mod dependencies;
mod documented_metrics;
mod example_agents;
mod export;
mod failover;
mod grpc;
mod heartbeat;
mod history;
mod host_deduplication;
mod host_expiry;
mod http_port;
mod identifier_claims;
mod init;
mod jwks;
mod key_rotation;
mod life_cycle;
mod load_balancers;
mod observability;
mod pipeline;
mod pipeline_faults;
mod places;
mod queue;
mod registration;
mod registration_races;
mod release;
mod report_budget;
mod repository;
mod restore;
mod server_certificate;
mod settings;
mod signing_key_file;
mod signing_key_races;
mod strangers;
mod stream_faults;
mod trust;
mod updates;
mod upgrade;
mod write_limits;
