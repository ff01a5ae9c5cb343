//! The keys of the advisory locks, all in one place so that no two meanings
//! ever share one. Every lock is taken inside a transaction and ends with it,
//! which is the only kind that works through a PgBouncer.

/// Held while the schema is changed.
pub(crate) const MIGRATE: i64 = 0x7376_6369_0001;

/// Held while an instance compares its key with its siblings' and joins them.
pub(crate) const LEASE_CLAIM: i64 = 0x7376_6369_0002;

/// Held while the partitions of samples are made.
pub(crate) const PARTITIONS: i64 = 0x7376_6369_0003;

/// Held for a step of the rollup: nobody else reads or writes what is due.
pub(crate) const ROLLUPS: i64 = 0x7376_6369_0004;

/// Held while partitions are dropped.
pub(crate) const RETENTION: i64 = 0x7376_6369_0005;
