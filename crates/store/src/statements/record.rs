//! Rows as structs: each field is filled from the column of the same name.

use tokio_postgres::Row;

use crate::pg::{
    error::Result,
    pool::{Bulkhead, Store},
    tx::{Param, Tx},
};

pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self>;
}

/// Declares a struct and how it is read from a row.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::statements::record::FromRow for $name {
            fn from_row(row: &tokio_postgres::Row) -> $crate::pg::error::Result<$name> {
                Ok($name {
                    $($field: row.try_get(stringify!($field))?,)*
                })
            }
        }
    };
}

pub(crate) use record;

impl Store {
    /// The rows of [`Store::read`].
    pub(crate) async fn read_all<T: FromRow>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<T>> {
        let rows = self.read(name, bulkhead, sql, params).await?;
        rows.iter().map(T::from_row).collect()
    }

    /// The first row of [`Store::read`], if there is one.
    pub(crate) async fn read_first<T: FromRow>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<T>> {
        let rows = self.read(name, bulkhead, sql, params).await?;
        rows.first().map(T::from_row).transpose()
    }
}

impl Tx {
    pub(crate) async fn query_all<T: FromRow>(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<T>> {
        let rows = self.query(sql, params).await?;
        rows.iter().map(T::from_row).collect()
    }

    /// The only row, if there is one.
    pub(crate) async fn query_first<T: FromRow>(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<T>> {
        let row = self.query_opt(sql, params).await?;
        row.as_ref().map(T::from_row).transpose()
    }
}
