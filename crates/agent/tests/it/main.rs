//! The agent against the real service on a real PostgreSQL: one binary, one module per theme.

mod addresses;
mod anchors;
mod cells;
mod clones;
mod commands;
mod connection;
mod cost;
mod disks;
mod enrolment;
mod hung_mounts;
mod installation;
mod keys;
mod proxies;
mod service_settings;
mod settings;
mod silence;
mod simulated_day;
mod trust;
mod updates;
