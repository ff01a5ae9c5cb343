//! A whole system for scenarios and benchmarks: PostgreSQL, instances of the real binary, certificates.
//!
//! Invariant: everything that is started here dies with this process, even when that is killed.

pub mod http;
pub mod ingest;
mod instance;

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::Context;
use svc_sandbox::{Identity, Postgres, PostgresOptions};
use tempfile::TempDir;

pub use self::instance::Instance;
use crate::proc::{self, Cost};

const DATABASE: &str = "svc";

#[derive(Debug)]
pub struct Lab {
    // Dropped in this order: who uses the database before it.
    pub instances: Vec<Instance>,
    pub postgres: Postgres,
    folder: TempDir,
    settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub instances: usize,
    /// How often the instances expect to hear of their agents.
    pub interval: Duration,
    /// Whether PostgreSQL syncs its commits, as it does in production.
    pub durable: bool,
    /// Further variables of the instances.
    pub variables: Vec<(String, String)>,
}

/// What everything has cost so far, except the fleet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub services: Cost,
    pub postgres: Cost,
    pub wal_bytes: u64,
    pub statements: u64,
}

impl Lab {
    pub async fn start(settings: Settings) -> anyhow::Result<Lab> {
        let postgres = Postgres::start(postgres_options(settings.durable)).await?;
        postgres.create_database(DATABASE, None).await?;
        let extension = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements";
        postgres.psql(DATABASE, extension).await?;
        let folder = tempfile::tempdir()?;
        Identity::server(&["localhost", "127.0.0.1"])?.write(folder.path(), "server")?;
        let mut lab = Lab {
            instances: Vec::new(),
            postgres,
            folder,
            settings,
        };
        // One after the other: the first migrates, and makes the signing key.
        for _ in 0..lab.settings.instances {
            lab.add_instance().await?;
        }
        Ok(lab)
    }

    /// One more, beside those that run.
    pub async fn add_instance(&mut self) -> anyhow::Result<()> {
        let instance = Instance::launch(self, self.instances.len(), None)?;
        instance.serving().await?;
        self.instances.push(instance);
        Ok(())
    }

    pub fn targets(&self) -> Vec<SocketAddr> {
        self.instances
            .iter()
            .map(|instance| instance.grpc)
            .collect()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn database_url(&self) -> String {
        self.postgres.url(DATABASE)
    }

    pub async fn psql(&self, sql: &str) -> anyhow::Result<String> {
        self.postgres.psql(DATABASE, sql).await
    }

    /// One number.
    pub async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let text = self.psql(sql).await?;
        text.trim()
            .parse()
            .with_context(|| format!("{sql}: {text}"))
    }

    pub async fn token(&self, uses: u32) -> anyhow::Result<String> {
        ingest::token(&self.database_url(), uses).await
    }

    /// Starts an instance again on the ports it had.
    pub async fn start_again(&mut self, index: usize) -> anyhow::Result<()> {
        let gone = &self.instances[index];
        let again = Instance::launch(self, index, Some((gone.grpc, gone.http)))?;
        self.instances[index] = again;
        self.instances[index].serving().await
    }

    /// How often agents have gone offline: every change is an event.
    pub async fn times_offline(&self) -> anyhow::Result<u64> {
        let sql =
            "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";
        self.number(sql).await
    }

    /// How many statements PostgreSQL has been asked; it forgets them when it is stopped.
    pub async fn statements(&self) -> anyhow::Result<u64> {
        self.number("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements")
            .await
    }

    pub async fn spent(&self) -> anyhow::Result<Spent> {
        let mut services = Cost::default();
        for instance in &self.instances {
            let one = proc::cost(instance.pid())?;
            services.cpu_us += one.cpu_us;
            services.rss_kib += one.rss_kib;
        }
        let wal = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn";
        Ok(Spent {
            services,
            postgres: proc::family_cost(proc::postmaster(self.postgres.data_dir())?)?,
            wal_bytes: self.number(wal).await?,
            statements: self.statements().await?,
        })
    }
}

fn postgres_options(durable: bool) -> PostgresOptions {
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track", "top"),
        ("shared_buffers", "512MB"),
        ("max_wal_size", "4GB"),
    ];
    PostgresOptions {
        durable,
        settings: settings
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        ..PostgresOptions::default()
    }
}
