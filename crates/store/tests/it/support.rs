//! What every test needs: a database of its own and patience.

use std::time::Duration;

use anyhow::{Context, Result};
use svc_sandbox::{TestDatabase, test_database};
use svc_store::{Bulkhead, DatabaseUrl, Store, StoreOptions, TxLimits};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Limits that no slow machine runs into.
pub const GENEROUS: TxLimits = TxLimits {
    statement: PATIENCE,
    lock: PATIENCE,
    idle: PATIENCE,
    deadline: Duration::from_secs(60),
};

pub fn options(pool_size: usize) -> StoreOptions {
    StoreOptions {
        pool_size,
        acquire: PATIENCE,
        limits: GENEROUS,
    }
}

pub fn open(url: &str, options: StoreOptions) -> Result<Store> {
    Ok(Store::new(DatabaseUrl::parse(url)?, options)?)
}

/// A database with nothing in it.
pub async fn empty() -> Result<(TestDatabase, Store)> {
    let database = test_database("store_empty", async |_| Ok(())).await?;
    let store = open(database.url(), options(16))?;
    Ok((database, store))
}

/// A database with the whole schema.
pub async fn migrated() -> Result<(TestDatabase, Store)> {
    let database = test_database("store_migrated", migrate).await?;
    let store = open(database.url(), options(16))?;
    Ok((database, store))
}

async fn migrate(url: String) -> Result<()> {
    open(&url, options(3))?.migrate().await?;
    Ok(())
}

/// The first column of the first row, as text.
pub async fn text(store: &Store, sql: &str) -> Result<String> {
    let rows = store.read("test", Bulkhead::Watch, sql, &[]).await?;
    let row = rows.first().context("no row")?;
    Ok(row.try_get::<_, Option<String>>(0)?.unwrap_or_default())
}

pub async fn batch(store: &Store, sql: &str) -> Result<()> {
    store
        .run("test", Bulkhead::Watch, async |tx| tx.batch(sql).await)
        .await?;
    Ok(())
}

pub fn metrics(store: &Store) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    store.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}
