//! Samples whose day has no partition.
//!
//! The service checks the age of a sample on arrival. Until the sample is stored, its day may
//! have been dropped, or may never have been created. PostgreSQL then rejects the whole batch,
//! and the batch is repeated with such samples turned into gaps.

use std::{borrow::Cow, collections::BTreeSet};

use jiff::Timestamp;
use tokio_postgres::Row;

use super::Range;
use crate::{error::StoreError, tx::Tx};

const SECONDS_A_DAY: i64 = 86_400;

/// Whether a row has no partition: a check violation that names no constraint.
pub(super) fn is_missing(error: &StoreError) -> bool {
    error.sqlstate() == Some("23514") && error.constraint().is_none()
}

impl Tx {
    /// Turns the samples whose day has no partition into gaps.
    pub(super) async fn expire_samples(
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
        let day = |row: &Row| Ok(i64::from(row.try_get::<_, i32>(0)?));
        rows.iter().map(day).collect()
    }
}

/// Days since 1970-01-01 UTC.
fn day(at: Timestamp) -> i64 {
    at.as_second().div_euclid(SECONDS_A_DAY)
}
