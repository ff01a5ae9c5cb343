//! The different systems and versions of a fleet. They are few, so a search for a part of a name becomes a search for the
//! values that contain it.

use crate::prelude::*;

/// A fleet with more different values than this is searched without the list.
const DIFFERENT: usize = 1000;

/// Every different value once: one step through the index for each.
pub(super) const SYSTEMS: &str = "-- console_hosts
    WITH RECURSIVE systems AS (
        SELECT min(os || ' ' || os_version) AS system FROM hosts
        UNION ALL
        SELECT (SELECT min(os || ' ' || os_version) FROM hosts WHERE os || ' ' || os_version > systems.system)
          FROM systems WHERE system IS NOT NULL)
    SELECT system FROM systems WHERE system IS NOT NULL LIMIT $1";

pub(super) const VERSIONS: &str = "-- console_hosts
    WITH RECURSIVE versions AS (
        SELECT min(version) AS version FROM agents WHERE status = 'active'
        UNION ALL
        SELECT (SELECT min(version) FROM agents WHERE status = 'active' AND version > versions.version)
          FROM versions WHERE version IS NOT NULL)
    SELECT version FROM versions WHERE version IS NOT NULL LIMIT $1";

/// All values, or `None` if they are too many to list.
pub(super) async fn different(tx: &Tx, sql: &str) -> Result<Option<Vec<String>>> {
    let most = i64::try_from(DIFFERENT).unwrap_or(i64::MAX);
    let rows = tx.query(sql, &params![most]).await?;
    if rows.len() >= DIFFERENT {
        return Ok(None);
    }
    let values = rows.iter().map(|row| Ok(row.try_get(0)?));
    values.collect::<Result<_>>().map(Some)
}
