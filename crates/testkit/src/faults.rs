//! Faults under load. `cargo test` runs each briefly and checks that nothing is lost; `make chaos`
//! runs it at full length and also checks the figures that it returns.

mod cold_starts;
mod database;
mod half_sent;
mod instances;
mod key_rotation;
mod load_balancer;
mod locked_table;
mod replication;
mod reset_calls;
mod revocations;
mod unread;

pub use cold_starts::{assert_one_private_file, cold_starts, first_starts_with_web_role};
pub use database::{
    DatabaseFault, behind_proxy, commits_cut, connections_reset, database_away, metrics_locked,
    overlapping_writers, sessions_during, through_pgbouncer,
};
pub use half_sent::{HalfSent, Stranger, half_sent_by_strangers};
pub use instances::{
    agents_hop, any_part_killed, instance_suspended, instance_terminated, instances_killed,
};
pub use key_rotation::{KeyRotation, key_rotated};
pub use load_balancer::{LoadBalancer, instance_leaves_load_balancer};
pub use locked_table::{LockedOut, registrations_behind_a_lock};
pub use replication::{CommitWaits, primary_frozen, replicated_site, standby_cut_off};
pub use reset_calls::{ResetCalls, registrations_reset};
pub use revocations::{renewals_raced, streams_revoked};
pub use unread::{UnreadStream, stops_reading};
