//! Rows as one array per column, for statements that `unnest` them and functions that take them.

use tokio_postgres::types::{ToSql, Type};

use crate::{
    pg::tx::Param,
    statements::params::{Element, Typed},
};

/// The parameters of such a statement.
#[derive(Default)]
pub(crate) struct Arrays<'a>(Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>);

impl<'a> Arrays<'a> {
    /// Adds a parameter that is no column.
    pub(crate) fn value<T>(mut self, value: T) -> Self
    where
        T: ToSql + Typed + Sync + Send + 'a,
    {
        self.0.push((Box::new(value), T::TYPE));
        self
    }

    /// Adds a column.
    pub(crate) fn column<R, T>(self, rows: &[R], value: impl Fn(&R) -> T) -> Self
    where
        T: ToSql + Element + Sync + Send + 'a,
    {
        self.value(rows.iter().map(value).collect::<Vec<T>>())
    }

    /// A statement of `method` that passes all columns to a function.
    pub(crate) fn call(&self, method: &str, function: &str) -> String {
        let arguments: Vec<String> = (1..=self.0.len()).map(|n| format!("${n}")).collect();
        let arguments = arguments.join(", ");
        format!("-- {method}\nSELECT * FROM {function}({arguments})")
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        let columns = self.0.iter();
        columns
            .map(|(column, array)| (column.as_ref() as _, array.clone()))
            .collect()
    }
}
