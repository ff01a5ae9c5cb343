//! Advisory locks, with all their keys in one place so that no two uses share a key.
//!
//! Every lock is taken inside a transaction and ends with it. Session-level locks would not
//! work behind a PgBouncer in transaction mode: the next transaction may run on another
//! server session, which does not hold the lock.
//!
//! **Order.** A transaction takes at most one of these locks, and takes it before any lock on a table, so two of them cannot wait
//! for each other. Whatever changes the catalog of a table that
//! others change too (a migration, a GRANT, a new partition) holds [`SCHEMA`]: PostgreSQL fails
//! one of two concurrent updates of the same catalog row ("tuple concurrently updated"). Dropping
//! a partition is the exception. It may wait minutes for readers, and a start must not wait for
//! it; the rare collision counts as a conflict and is repeated.

use crate::{
    pg::{error::Result, tx::Tx},
    statements::params::params,
};

/// Held while the schema changes: migrations, privileges, new partitions.
pub(crate) const SCHEMA: i64 = 0x7376_6369_0001;

/// Held while an instance compares its signing key with the live instances and joins them.
pub(crate) const LEASE_CLAIM: i64 = 0x7376_6369_0002;

/// Held during a step of the compaction.
pub(crate) const COMPACTION: i64 = 0x7376_6369_0006;

/// Held while the pictures of the fleet are counted.
pub(crate) const FLEET_PICTURES: i64 = 0x7376_6369_0007;

/// Held while partitions are dropped.
pub(crate) const RETENTION: i64 = 0x7376_6369_0005;

// 0x7376_6369_0007 is taken by `add_people_event` (schema/65_people_events.sql) while it counts refused attempts.

impl Tx {
    /// Waits for the lock, at most for the transaction's lock timeout.
    pub(crate) async fn lock(&self, key: i64) -> Result<()> {
        let sql = "-- lock\nSELECT pg_advisory_xact_lock($1)";
        self.execute(sql, &params![key]).await.map(drop)
    }

    /// Takes the lock if it is free.
    pub(crate) async fn try_lock(&self, key: i64) -> Result<bool> {
        let sql = "-- try_lock\nSELECT pg_try_advisory_xact_lock($1)";
        self.query_value(sql, &params![key]).await
    }
}
