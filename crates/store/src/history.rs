//! The compacted history of hosts: chunks, their packed parts, and hourly rollups.
//!
//! In reading order: `shape` (what the numbers of a sample are), `chunk` (the samples of an hour), `pack` (their parts as
//! bytes), `rollup` (the summary of an hour).
//!
//! Everything here is computed from values in memory. `service/compaction` reads and writes the rows. Readers in SQL know
//! the same layout: `schema/50_history.sql` unpacks it, and computes the figures of hours that are not compacted yet
//! by the same rules.
//!
//! Integers of a sample are within 0 ..= [`MOST`]: arrival rejects all others. So no difference of two values, and no
//! difference of two differences as unsigned number, needs more than 64 bits.

pub(crate) mod chunk;
pub(crate) mod pack;
pub(crate) mod rollup;
pub(crate) mod shape;

/// The greatest integer of a sample.
pub(crate) const MOST: i64 = 1 << 62;

/// Fails because stored history is damaged, unless another error is named.
pub(crate) type Result<T, E = Damaged> = std::result::Result<T, E>;

/// Stored history that this program cannot have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged history: {0}")]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Fails with this reason unless the condition holds.
fn ensure(condition: bool, otherwise: &'static str) -> Result<()> {
    condition.then_some(()).ok_or(Damaged(otherwise))
}
