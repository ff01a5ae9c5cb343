//! Lists are bounded: the first rows, and whether there are more.
//!
//! One row more than wanted is asked for, which costs less than counting.

use tokio_postgres::Row;

use crate::error::StoreError;

#[derive(Debug, Clone)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// Whether the limit left some out.
    pub truncated: bool,
}

impl<T> Page<T> {
    /// The LIMIT to ask the database for.
    pub(crate) fn limit(wanted: u32) -> i64 {
        i64::from(wanted) + 1
    }

    pub(crate) fn from_rows(
        rows: &[Row],
        wanted: u32,
        from_row: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let kept = rows.iter().take(wanted).map(from_row);
        Ok(Page {
            rows: kept.collect::<Result<_, _>>()?,
            truncated: rows.len() > wanted,
        })
    }
}
