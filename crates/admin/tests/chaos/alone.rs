//! Tests that need the whole machine: they measure milliseconds, or load all cores.

mod approvals;
mod changes;
mod cold_starts;
mod reconnect_storms;
mod revocations;
mod revoked_streams;
mod rollouts;
