//! A database for each test, on one server for all tests of a process.
//!
//! Invariant: a template is prepared once in a process and has no connections afterwards, so that
//! cloning it is quick and all clones are equal. The server is a static that belongs to no runtime,
//! because every `#[tokio::test]` has its own; it ends with the process.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{Mutex, OnceCell};

use crate::postgres::{Postgres, PostgresOptions, quoted};

/// The server that all tests of one process share, started on first use.
pub async fn shared_postgres() -> anyhow::Result<&'static Postgres> {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER
        .get_or_try_init(|| Postgres::start(PostgresOptions::default()))
        .await
}

/// A database that is dropped with this value.
#[derive(Debug)]
pub struct TestDatabase {
    server: &'static Postgres,
    name: String,
    url: String,
}

/// Clones `template`, which `prepare` fills on the first use in this process.
pub async fn test_database<F, Fut>(template: &str, prepare: F) -> anyhow::Result<TestDatabase>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let server = shared_postgres().await?;
    let prepared = template_cell(template).await;
    prepared
        .get_or_try_init(|| make_template(server, template, prepare))
        .await?;

    let name = format!("{template}_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    server.create_database(&name, Some(template)).await?;
    let url = server.url(&name);
    Ok(TestDatabase { server, name, url })
}

impl TestDatabase {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Best effort, on a thread with its own runtime: the runtime of the test may be shutting down.
impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (server, sql) = (
            self.server,
            format!("DROP DATABASE {} WITH (FORCE)", quoted(&self.name)),
        );
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(server.psql("postgres", &sql))
        });
    }
}

/// One cell per template: later callers wait for the first, and try again if it failed.
async fn template_cell(template: &str) -> Arc<OnceCell<()>> {
    static CELLS: LazyLock<Mutex<HashMap<String, Arc<OnceCell<()>>>>> =
        LazyLock::new(Mutex::default);
    Arc::clone(CELLS.lock().await.entry(template.to_owned()).or_default())
}

async fn make_template<F, Fut>(server: &Postgres, name: &str, prepare: F) -> anyhow::Result<()>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let quoted_name = quoted(name);
    let drop_failed_attempt = format!("DROP DATABASE IF EXISTS {quoted_name} WITH (FORCE)");
    server.psql("postgres", &drop_failed_attempt).await?;
    server.create_database(name, None).await?;
    prepare(server.url(name)).await?;
    let close = format!("ALTER DATABASE {quoted_name} ALLOW_CONNECTIONS false");
    server.psql("postgres", &close).await?;
    let disconnect = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ";
    let disconnect = format!("{disconnect}'{}'", name.replace('\'', "''"));
    server.psql("postgres", &disconnect).await.map(drop)
}
