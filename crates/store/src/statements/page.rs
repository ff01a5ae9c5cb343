//! Bounded lists: the first rows, and whether there are more.

use tokio_postgres::types::Type;

use crate::{
    pg::{
        error::Result,
        pool::{Bulkhead, Store},
        tx::Param,
    },
    statements::record::FromRow,
};

#[derive(Debug, Clone)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// Whether the limit left rows out.
    pub truncated: bool,
}

impl Store {
    /// Reads at most `limit` rows. `sql` ends with `LIMIT` and the parameter after `params`,
    /// which is set to one row more: that costs less than counting.
    pub(crate) async fn read_page<T: FromRow>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
        limit: u32,
    ) -> Result<Page<T>> {
        let asked = i64::from(limit) + 1;
        let mut params = params.to_vec();
        params.push((&asked, Type::INT8));
        let rows = self.read(name, bulkhead, sql, &params).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let kept = rows.iter().take(limit).map(T::from_row);
        Ok(Page {
            rows: kept.collect::<Result<_, _>>()?,
            truncated: rows.len() > limit,
        })
    }
}
