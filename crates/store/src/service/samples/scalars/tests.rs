//! The declaration against the tables and functions of the migrations.

use std::collections::BTreeSet;

use anyhow::Result;
use svc_sandbox::{query, test_database};

use super::*;
use crate::{DatabaseUrl, PartKind, Store, StoreOptions};

impl Scalar {
    fn sql_type(&self) -> &'static str {
        match self.value {
            Value::Real { .. } => "real",
            Value::Integer(_) => "integer",
            Value::Big(_) => "bigint",
        }
    }
}

/// `name type` of each scalar.
fn declared(suffix: &str) -> Vec<String> {
    let line = |scalar: &Scalar| format!("{} {}{suffix}", scalar.name, scalar.sql_type());
    SCALARS.iter().map(line).collect()
}

#[tokio::test]
async fn every_scalar_is_a_column_and_a_last_argument() -> Result<()> {
    let migrate = async |url: String| {
        let store = Store::new(DatabaseUrl::parse(&url)?, StoreOptions::default())?;
        store.migrate().await?;
        Ok(())
    };
    let database = test_database("vitals_migrated", migrate).await?;
    for (table, suffix) in [
        ("samples_open", ""),
        ("host_vitals", ""),
        ("sample_chunks", "[]"),
    ] {
        let columns = format!(
            "SELECT concat(attname, ' ', format_type(atttypid, NULL)) FROM pg_attribute
              WHERE attrelid = '{table}'::regclass AND attnum > 0"
        );
        let columns = query(database.url(), &columns).await?;
        let columns: BTreeSet<&str> = columns.lines().collect();
        let mut missing = declared(suffix);
        missing.retain(|scalar| !columns.contains(scalar.as_str()));
        assert!(missing.is_empty(), "{table} has no {missing:?}");
    }
    for function in ["samples_store", "samples_append"] {
        let sql = format!("SELECT pg_get_function_arguments('{function}'::regproc)");
        let arguments = query(database.url(), &sql).await?;
        let scalars = declared("[]").join(", ");
        let are_last = arguments.trim_end().ends_with(&scalars);
        assert!(are_last, "{function}: {arguments}");
    }
    Ok(())
}

#[test]
fn the_names_of_parts_are_distinct() {
    let names: BTreeSet<&str> = PartKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), PartKind::ALL.len());
}
