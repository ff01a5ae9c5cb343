//! Which days of samples are kept.
//!
//! The service judges a sample's age when it arrives; until it is stored its day
//! may have been dropped, or never made. The database then refuses the batch it
//! is in, and the batch comes back here to have such samples turned into gaps.

use std::{borrow::Cow, collections::BTreeSet};

use jiff::Timestamp;

use super::Range;
use crate::error::StoreError;
use crate::tx::Tx;

const SECONDS_A_DAY: i64 = 86_400;

/// Whether the database has no partition for a row: a check violation, but of no
/// constraint that has a name.
pub(super) fn is_missing(error: &StoreError) -> bool {
    error.sqlstate() == Some("23514") && error.constraint().is_none()
}

impl Tx {
    /// Turns the samples whose day is not kept into gaps.
    pub(super) async fn days_look_up(
        &self,
        ranges: &mut [Cow<'_, Range>],
    ) -> Result<(), StoreError> {
        let days = self.days_kept().await?;
        for range in ranges {
            range
                .to_mut()
                .keep(|sample| days.contains(&day(sample.sampled_at)));
        }
        Ok(())
    }

    async fn days_kept(&self) -> Result<BTreeSet<i64>, StoreError> {
        let sql = "-- samples_append
            SELECT to_date(right(relname, 8), 'YYYYMMDD') - date '1970-01-01'
              FROM pg_inherits JOIN pg_class ON oid = inhrelid
             WHERE inhparent = 'host_metrics'::regclass AND NOT inhdetachpending";
        let rows = self.query(sql, &[]).await?;
        let day = |row: &tokio_postgres::Row| Ok(i64::from(row.try_get::<_, i32>(0)?));
        rows.iter().map(day).collect()
    }
}

/// Days since 1970, in UTC.
fn day(at: Timestamp) -> i64 {
    at.as_second().div_euclid(SECONDS_A_DAY)
}
