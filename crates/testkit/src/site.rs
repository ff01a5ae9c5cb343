//! Where services run: a database, a metrics queue, and a folder with the server's certificate and
//! a signing key. Services on one site are siblings.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use svc_harness::{Environment, ServiceBuilder, ServiceProcess, eventually};
use svc_sandbox::{
    Nats, NatsOptions, Postgres, PostgresOptions, TestDatabase, query, test_database,
};
use svc_store::{DatabaseUrl, Store, StoreOptions};
use tempfile::TempDir;

use crate::{ActiveAgent, Instance, InstanceBuilder};

/// The name of the database on a server of the site's own.
const OWN: &str = "svc";

#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    database: Database,
    nats: Option<Nats>,
    environment: Environment,
}

/// The two kinds of metrics queue. What the queue promises is tested over both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    Memory,
    Nats,
}

impl QueueKind {
    pub const BOTH: [Self; 2] = [Self::Memory, Self::Nats];

    /// Runs a test over both kinds at once, because tests wait most of the time; the error names the kind.
    pub async fn each(test: impl AsyncFn(Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let run = async |kind| test(kind).await.with_context(|| format!("{kind:?}"));
        tokio::try_join!(run(Self::Memory), run(Self::Nats)).map(drop)
    }
}

#[derive(Debug)]
enum Database {
    Shared(TestDatabase),
    Own(Box<Postgres>),
}

impl Site {
    /// A site whose database has the whole schema.
    pub async fn new() -> anyhow::Result<Self> {
        Self::on(Database::Shared(
            test_database("ingest_migrated", migrate).await?,
        ))
    }

    /// A migrated site, with an instance that serves.
    pub async fn with_instance() -> anyhow::Result<(Self, Instance)> {
        let site = Self::new().await?;
        let instance = site.instance().start().await?;
        Ok((site, instance))
    }

    /// A migrated site, with the real binary, which serves.
    pub async fn with_process() -> anyhow::Result<(Self, ServiceProcess)> {
        let site = Self::new().await?;
        let process = site.process().start().await?;
        Ok((site, process))
    }

    /// A migrated site, with an instance that serves and an agent that has registered there.
    pub async fn with_agent() -> anyhow::Result<(Self, Instance, ActiveAgent)> {
        let site = Self::new().await?;
        let (instance, agent) = site.instance().with_agent(&site).await?;
        Ok((site, instance, agent))
    }

    /// A site whose database has nothing in it.
    pub async fn unmigrated() -> anyhow::Result<Self> {
        Self::on(Database::Shared(
            test_database("ingest_empty", async |_| Ok(())).await?,
        ))
    }

    /// A migrated site on a PostgreSQL server of its own, which a test may stop and freeze.
    pub async fn with_own_server() -> anyhow::Result<Self> {
        Self::with_server(PostgresOptions::default()).await
    }

    /// The same, on a server with settings of its own.
    pub async fn with_server(options: PostgresOptions) -> anyhow::Result<Self> {
        let server = Postgres::start(options).await?;
        server.create_database(OWN, None).await?;
        migrate(server.url(OWN)).await?;
        Self::on(Database::Own(Box::new(server)))
    }

    fn on(database: Database) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let environment = Environment::with_files(folder.path(), &database.url())?;
        Ok(Self {
            folder,
            database,
            nats: None,
            environment,
        })
    }

    /// Gives the site a metrics queue of this kind.
    pub async fn with_queue(mut self, kind: QueueKind) -> anyhow::Result<Self> {
        if kind == QueueKind::Nats {
            self.nats = Some(Nats::start(NatsOptions::default()).await?);
        }
        let url = self.queue_url();
        self.environment = self.environment.set("INGEST_QUEUE_URL", url);
        Ok(self)
    }

    /// The service in this process.
    pub fn instance(&self) -> InstanceBuilder {
        InstanceBuilder::new(self.environment.clone())
    }

    /// The service as the real binary.
    pub fn process(&self) -> ServiceBuilder {
        ServiceBuilder::new(self.environment.clone())
    }

    /// The real binary for a fleet.
    pub fn server_process(&self) -> ServiceBuilder {
        for_fleet(self.process())
    }

    /// `svc-ingest consume`, for a fleet.
    pub fn consumer_process(&self) -> ServiceBuilder {
        for_fleet(self.command_process(&["consume"]))
    }

    /// A command of the real binary, without the variables that only a server needs.
    pub fn command_process(&self, arguments: &[&str]) -> ServiceBuilder {
        let server_only = ["INGEST_TLS_CERT", "INGEST_TLS_KEY", "INGEST_JWT_KEY_FILE"];
        let process = self.process().arguments(arguments);
        server_only.into_iter().fold(process, ServiceBuilder::unset)
    }

    pub fn queue_url(&self) -> String {
        let url = self.nats.as_ref().map(Nats::url);
        url.unwrap_or_else(|| "memory:".into())
    }

    pub fn nats(&mut self) -> &mut Nats {
        self.nats.as_mut().expect("a site with NATS")
    }

    /// A path in the site's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn store(&self) -> anyhow::Result<Store> {
        store(&self.database_url())
    }

    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// The PostgreSQL server of a site that has its own.
    pub fn postgres(&mut self) -> &mut Postgres {
        match &mut self.database {
            Database::Own(server) => server,
            Database::Shared(_) => panic!("other tests use this server too"),
        }
    }

    /// Makes another server, which has the same databases, the site's own. Returns the old one.
    /// Services that run stay with the URL that they have.
    pub fn replace_postgres(&mut self, server: Postgres) -> Postgres {
        std::mem::replace(self.postgres(), server)
    }

    /// Runs SQL on the site's database. Each row is a line, with `|` between columns.
    pub async fn psql(&self, sql: &str) -> anyhow::Result<String> {
        query(&self.database_url(), sql).await
    }

    /// Makes a decision about all agents, in the name of ann: `approve`, `reject`, `revoke` or `reopen`.
    pub async fn decide_all(&self, decision: &str) -> anyhow::Result<()> {
        let sql = format!("SELECT {decision}_agent(id, 'ann') FROM agents");
        self.psql(&sql).await.map(drop)
    }

    /// Fails unless a query returns `wanted`.
    pub async fn expect(&self, sql: &str, wanted: &str) -> anyhow::Result<()> {
        let found = self.psql(sql).await?;
        ensure!(found == wanted, "{found:?}, not {wanted:?}: {sql}");
        Ok(())
    }

    /// Waits until a query returns `wanted`.
    pub async fn becomes(&self, sql: &str, wanted: &str) -> anyhow::Result<()> {
        let mut last = String::new();
        eventually(sql, async || {
            last = self.psql(sql).await.unwrap_or_default();
            last == wanted
        })
        .await
        .with_context(|| format!("{last:?}, not {wanted:?}"))
    }

    /// Waits until a statement on the site's database runs `pg_sleep`.
    pub async fn sleeps(&self) -> anyhow::Result<()> {
        let sleeping = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND wait_event = 'PgSleep'";
        self.becomes(sleeping, "1").await
    }
}

impl Database {
    fn url(&self) -> String {
        match self {
            Self::Shared(database) => database.url().to_owned(),
            Self::Own(server) => server.url(OWN),
        }
    }
}

/// Logs warnings only, and expects a heartbeat every 5 s, which makes the grace periods short.
fn for_fleet(process: ServiceBuilder) -> ServiceBuilder {
    process
        .set("INGEST_LOG", "warn")
        .set("INGEST_HEARTBEAT_INTERVAL", "5s")
}

fn store(url: &str) -> anyhow::Result<Store> {
    Ok(Store::new(
        DatabaseUrl::parse(url)?,
        StoreOptions::default(),
    )?)
}

async fn migrate(url: String) -> anyhow::Result<()> {
    store(&url)?.migrate().await?;
    Ok(())
}
