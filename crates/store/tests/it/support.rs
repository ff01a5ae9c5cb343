//! Test databases, a store on each, and SQL that bypasses the store.

use std::{ops::Deref, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestRunner},
};
use svc_sandbox::{Postgres, PostgresOptions, TestDatabase, test_database};
use svc_store::{DatabaseUrl, Store, StoreOptions};
use tokio::{runtime::Handle, task::spawn_blocking};
use tokio_postgres::{Client, NoTls};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A store and the address of its database. Dereferences to the store.
#[derive(Clone, Debug)]
pub struct TestStore {
    store: Store,
    url: String,
    /// Dropped with the last clone. `None` if the test owns the server.
    database: Option<Arc<TestDatabase>>,
}

impl TestStore {
    pub fn open(url: &str, pool_size: usize) -> Result<TestStore> {
        let mut options = StoreOptions::for_commands();
        (options.pool_size, options.acquire) = (pool_size, PATIENCE);
        TestStore::with(url, options)
    }

    pub fn with(url: &str, options: StoreOptions) -> Result<TestStore> {
        Ok(TestStore {
            store: Store::new(DatabaseUrl::parse(url)?, options)?,
            url: url.to_owned(),
            database: None,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address as the store takes it for connections beside the pool.
    pub fn direct(&self) -> Result<DatabaseUrl> {
        Ok(DatabaseUrl::parse(&self.url)?)
    }

    pub fn database_name(&self) -> &str {
        self.database.as_ref().map_or("postgres", |db| db.name())
    }

    /// Runs statements over a connection of their own. Rows come back as `psql -At`
    /// prints them.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        svc_sandbox::query(&self.url, sql).await
    }

    /// Waits until a statement returns this.
    pub async fn becomes(&self, sql: &str, expected: &str) -> Result<()> {
        svc_sandbox::becomes(&self.url, sql, expected).await
    }

    /// Opens a connection that lives as long as the client.
    pub async fn connect(&self) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// A database without a schema.
pub async fn empty() -> Result<TestStore> {
    on(test_database("store_empty", async |_| Ok(())).await?)
}

/// A database with the whole schema.
pub async fn migrated() -> Result<TestStore> {
    let migrate = async |url: String| {
        TestStore::open(&url, 3)?.migrate().await?;
        Ok(())
    };
    on(test_database("store_migrated", migrate).await?)
}

/// The whole schema on a server of its own, with these settings.
pub async fn own_server(settings: &[(&str, &str)]) -> Result<(Postgres, TestStore)> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let server = Postgres::start(PostgresOptions {
        settings: settings.iter().map(own).collect(),
        ..PostgresOptions::default()
    })
    .await?;
    let store = TestStore::open(&server.url("postgres"), 4)?;
    store.migrate().await?;
    Ok((server, store))
}

fn on(database: TestDatabase) -> Result<TestStore> {
    let mut store = TestStore::open(database.url(), 16)?;
    store.database = Some(Arc::new(database));
    Ok(store)
}

/// The SQLSTATE of an error that [`TestStore::sql`] returned.
pub fn sqlstate(error: &anyhow::Error) -> Result<&str> {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    let code = error.and_then(|error| error.code());
    Ok(code.context("not an error of the server")?.code())
}

/// Runs `test` on random values of `strategy`, and reports a minimal failing value. Needs a
/// runtime of the multi-thread flavor.
pub async fn property<S, T>(cases: u32, strategy: S, test: T) -> Result<()>
where
    S: Strategy<Value: Send> + Send + 'static,
    T: AsyncFn(S::Value) -> Result<()> + Send + 'static,
{
    let runtime = Handle::current();
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let run = move || {
        TestRunner::new(config).run(&strategy, |value| {
            let outcome = runtime.block_on(test(value));
            outcome.map_err(|wrong| TestCaseError::fail(format!("{wrong:#}")))
        })
    };
    spawn_blocking(run)
        .await?
        .map_err(|wrong| anyhow!("{wrong}"))
}
