//! A complete system for scenarios and benchmarks: PostgreSQL, instances of the real binary, certificates.
//!
//! Invariant: every process that is started here dies with this one, even if that is killed.

pub mod binary;
pub mod http;
mod instance;

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use svc_sandbox::{Identity, Postgres, PostgresOptions};
use tempfile::TempDir;

pub use self::instance::Instance;
use crate::procfs::{self, ProcessUsage};

const DATABASE: &str = "svc";

#[derive(Debug)]
pub struct Lab {
    // Fields are dropped in this order: the instances before the database that they use.
    pub instances: Vec<Instance>,
    pub postgres: Postgres,
    folder: TempDir,
    settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub instances: usize,
    /// The heartbeat interval of the instances.
    pub interval: Duration,
    /// Whether PostgreSQL syncs its commits to disk, as in production.
    pub durable: bool,
}

/// The resources that instances and PostgreSQL have used so far; the fleet is not included.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUsage {
    pub services: ProcessUsage,
    pub postgres: ProcessUsage,
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
        // One after another: the first one migrates and creates the signing key.
        for _ in 0..lab.settings.instances {
            lab.add_instance().await?;
        }
        Ok(lab)
    }

    /// Starts one more instance.
    pub async fn add_instance(&mut self) -> anyhow::Result<()> {
        let mut instance = Instance::start(self, self.instances.len(), None)?;
        instance.wait_until_healthy().await?;
        self.instances.push(instance);
        Ok(())
    }

    pub fn targets(&self) -> Vec<SocketAddr> {
        self.instances
            .iter()
            .map(|instance| instance.grpc)
            .collect()
    }

    pub fn database_url(&self) -> String {
        self.postgres.url(DATABASE)
    }

    pub async fn psql(&self, sql: &str) -> anyhow::Result<String> {
        self.postgres.psql(DATABASE, sql).await
    }

    /// Runs a query whose result is one number.
    pub async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let text = self.psql(sql).await?;
        text.trim()
            .parse()
            .with_context(|| format!("{sql}: {text}"))
    }

    /// Creates an auto-approving enrolment token.
    pub async fn token(&self, uses: u32) -> anyhow::Result<String> {
        binary::create_token(&self.database_url(), uses).await
    }

    /// Starts an instance that has ended again, on the same ports.
    pub async fn restart(&mut self, index: usize) -> anyhow::Result<()> {
        let ended = &self.instances[index];
        let restarted = Instance::start(self, index, Some((ended.grpc, ended.http)))?;
        self.instances[index] = restarted;
        self.instances[index].wait_until_healthy().await
    }

    /// How often agents have gone offline. Each time is one event.
    pub async fn times_offline(&self) -> anyhow::Result<u64> {
        let sql =
            "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";
        self.number(sql).await
    }

    /// How many statements PostgreSQL has executed since it was started.
    pub async fn statements(&self) -> anyhow::Result<u64> {
        self.number("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements")
            .await
    }

    pub async fn usage(&self) -> anyhow::Result<ResourceUsage> {
        let mut services = ProcessUsage::default();
        for instance in &self.instances {
            let one = procfs::usage(instance.pid())?;
            services.cpu_us += one.cpu_us;
            services.rss_kib += one.rss_kib;
        }
        let wal = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn";
        Ok(ResourceUsage {
            services,
            postgres: procfs::tree_usage(procfs::postmaster(self.postgres.data_dir())?)?,
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
