//! Where instances live: a database of their own, and a folder with the server's
//! certificate and a signing key. Instances on one site are siblings.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use svc_sandbox::{
    Identity, Postgres, PostgresOptions, TestDatabase, shared_postgres, test_database,
};
use svc_store::{DatabaseUrl, Store, StoreOptions};
use tempfile::TempDir;

use super::{InstanceBuilder, ProcessBuilder};

/// A key made by `openssl genpkey`, so that tests need not make one each.
const SIGNING_KEY: &str = include_str!("../fixtures/rsa2048.pem");

/// The database's name on a server of the site's own.
const OWN: &str = "svc";

#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    database: Database,
    environment: Environment,
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

    /// A site whose database has nothing in it.
    pub async fn unmigrated() -> anyhow::Result<Self> {
        Self::on(Database::Shared(
            test_database("ingest_empty", async |_| Ok(())).await?,
        ))
    }

    /// A migrated site on a PostgreSQL server of its own, which may be stopped and frozen.
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
            environment,
        })
    }

    /// The service in this process.
    pub fn instance(&self) -> InstanceBuilder {
        InstanceBuilder::new(self.environment.clone())
    }

    /// The service as the real binary.
    pub fn process(&self) -> ProcessBuilder {
        ProcessBuilder::new(self.environment.clone())
    }

    /// A path in the site's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// The server of a site that has its own.
    pub fn server(&mut self) -> &mut Postgres {
        match &mut self.database {
            Database::Own(server) => server,
            Database::Shared(_) => panic!("the server is everybody's"),
        }
    }

    /// Runs SQL on the site's database: a line a row, columns separated by `|`.
    pub async fn psql(&self, sql: &str) -> anyhow::Result<String> {
        match &self.database {
            Database::Own(server) => server.psql(OWN, sql).await,
            Database::Shared(database) => shared_postgres().await?.psql(database.name(), sql).await,
        }
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

/// Environment variables, as an instance reads them.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// What an instance needs, with its certificate and signing key in `folder`.
    pub fn with_files(folder: &Path, database_url: &str) -> anyhow::Result<Self> {
        let server = Identity::server(&["localhost", "127.0.0.1"])?;
        let (certificate, key) = server.write(folder, "server")?;
        let jwt_key = folder.join("jwt_key.pem");
        write_private(&jwt_key, SIGNING_KEY)?;
        Ok(Self::default()
            .set("DATABASE_URL", database_url)
            .set("INGEST_TLS_CERT", certificate)
            .set("INGEST_TLS_KEY", key)
            .set("INGEST_JWT_KEY_FILE", jwt_key)
            .set("INGEST_BIND_ADDRESS", "127.0.0.1"))
    }

    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    pub fn unset(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(name).cloned()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &OsString)> {
        self.0.iter()
    }
}

/// Writes a file that only its owner may read, as the service wants its key.
pub fn write_private(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

async fn migrate(url: String) -> anyhow::Result<()> {
    let store = Store::new(DatabaseUrl::parse(&url)?, StoreOptions::default())?;
    store.migrate().await?;
    Ok(())
}
