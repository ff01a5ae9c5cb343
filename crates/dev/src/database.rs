//! The database: a PostgreSQL server whose files stay in the folder.
//!
//! A folder with a database of an unreleased version is moved aside as a whole: its agent and its certificate belong to that database.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::Context;
use jiff::Timestamp;
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::{DatabaseUrl, SchemaState, Store, StoreOptions};

const NAME: &str = "svc";
const USER: &str = "svc";
/// The console's role.
pub const WEB_ROLE: &str = "svc_web";

#[derive(Debug)]
pub struct Database {
    postgres: Postgres,
    /// Where the folder went that held the data of an unreleased version.
    pub aside: Option<PathBuf>,
}

impl Database {
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        let mut postgres = start_postgres(folder).await?;
        let mut aside = None;
        if is_unreleased(&postgres).await? {
            drop(postgres); // It stops before its files move.
            aside = Some(move_aside(folder)?);
            postgres = start_postgres(folder).await?;
        }
        create_web_role(&postgres).await?;
        Ok(Self { postgres, aside })
    }

    pub fn url(&self) -> String {
        self.postgres.url(NAME)
    }

    /// As the console's role.
    pub fn web_url(&self) -> String {
        let (owner, web) = (format!("{USER}@"), format!("{WEB_ROLE}@"));
        self.url().replacen(&owner, &web, 1)
    }
}

/// The role may create a schema of its own, and nothing else but what the service grants it.
async fn create_web_role(postgres: &Postgres) -> anyhow::Result<()> {
    let sql = format!(
        "DO $$ BEGIN CREATE ROLE {WEB_ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         GRANT CREATE ON DATABASE {NAME} TO {WEB_ROLE}"
    );
    postgres.psql(NAME, &sql).await.map(drop)
}

async fn start_postgres(folder: &Path) -> anyhow::Result<Postgres> {
    let port_file = folder.join("postgres.port");
    let options = PostgresOptions {
        data_dir: Some(folder.join("postgres")),
        durable: true,
        port: same_port(&port_file),
        ..PostgresOptions::default()
    };
    let postgres = Postgres::start(options).await?;
    fs::write(port_file, postgres.port().to_string())?;
    let exists = format!("SELECT datname FROM pg_database WHERE datname = '{NAME}'");
    if !postgres.psql("postgres", &exists).await?.contains(NAME) {
        postgres.create_database(NAME, None).await?;
    }
    Ok(postgres)
}

/// The port of the previous start, if it is still free.
fn same_port(file: &Path) -> Option<u16> {
    let port = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    TcpListener::bind(("127.0.0.1", port))
        .is_ok()
        .then_some(port)
}

async fn is_unreleased(postgres: &Postgres) -> anyhow::Result<bool> {
    let url = DatabaseUrl::parse(&postgres.url(NAME))?;
    let store = Store::new(url, StoreOptions::for_commands())?;
    Ok(store.schema_check().await? == SchemaState::Unreleased)
}

fn move_aside(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut aside = folder.as_os_str().to_owned();
    aside.push(Timestamp::now().strftime(".%Y%m%dT%H%M%SZ").to_string());
    let moved = fs::rename(folder, &aside).and_then(|()| fs::create_dir(folder));
    moved.with_context(|| {
        format!(
            "cannot move {} aside, which holds the data of an unreleased version",
            folder.display()
        )
    })?;
    Ok(aside.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const UNRELEASED: &str = "
        CREATE TABLE schema_migrations (version integer PRIMARY KEY, name text, checksum text);
        INSERT INTO schema_migrations VALUES (1, 'instances', 'x'), (34, 'clock_steps', 'y')";

    #[tokio::test]
    async fn a_folder_with_a_database_of_an_unreleased_version_is_moved_aside_once()
    -> anyhow::Result<()> {
        let parent = tempfile::tempdir()?;
        // PostgreSQL may run as another user.
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755))?;
        let folder = parent.path().join("dev");
        fs::create_dir(&folder)?;
        let first = Database::start(&folder).await?;
        assert_eq!(first.aside, None);
        first.postgres.psql(NAME, UNRELEASED).await?;
        fs::write(folder.join("enrolment_token"), "old")?;
        drop(first);
        let fresh = Database::start(&folder).await?;
        let aside = fresh.aside.clone().context("nothing was moved")?;
        assert!(aside.starts_with(parent.path()) && aside.join("postgres").is_dir());
        assert_eq!(fs::read_to_string(aside.join("enrolment_token"))?, "old");
        assert!(!folder.join("enrolment_token").exists());
        let store = Store::new(DatabaseUrl::parse(&fresh.url())?, StoreOptions::default())?;
        store.migrate().await?;
        drop((store, fresh));
        assert_eq!(Database::start(&folder).await?.aside, None);
        Ok(())
    }
}
