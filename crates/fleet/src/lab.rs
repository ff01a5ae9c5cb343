//! A complete system for scenarios and benchmarks: PostgreSQL, instances of the real binary, certificates.
//!
//! Invariant: every process that is started here dies with this one, even if that is killed.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::Context;
use rustix::process::Signal;
use svc_harness::{Environment, Program, ServiceBuilder, ServiceProcess, Usage};
use svc_sandbox::{PRODUCTION, Postgres, PostgresOptions};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    plan::Plan,
    procfs::{self, ProcessUsage},
};

const DATABASE: &str = "svc";
const AGENTS_PER_INSTANCE: u32 = 18_000;
/// `SVC_INGEST_BIN` names another binary.
const SERVICE: &str = "svc-ingest";
/// For an instance to serve again, on a machine with other work.
const START_TIMEOUT: Duration = Duration::from_secs(300);
const TOKEN_CREATE: &str =
    "token create --auto-approve --label svc-fleet --expires-in 1d --output json --max-uses";

#[derive(Debug)]
pub struct Lab {
    // Fields are dropped in this order: the instances before the database that they use.
    pub instances: Vec<ServiceProcess>,
    pub postgres: Postgres,
    service: ServiceBuilder,
    _folder: TempDir,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub instances: usize,
    /// The heartbeat interval of the instances.
    pub interval: Duration,
    /// Whether PostgreSQL syncs its commits to disk and has the settings of production. That needs
    /// PostgreSQL 15.
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
        let environment = Environment::with_files(folder.path(), &postgres.url(DATABASE))?;
        let interval = format!("{}ms", settings.interval.as_millis());
        let mut lab = Lab {
            instances: Vec::new(),
            postgres,
            service: ServiceBuilder::new(environment)
                .set("INGEST_HEARTBEAT_INTERVAL", interval)
                .set("INGEST_LOG", "warn"),
            _folder: folder,
        };
        // One after another: the first one migrates.
        for _ in 0..settings.instances {
            lab.add_instance().await?;
        }
        Ok(lab)
    }

    /// Sets a variable of the instances that are started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.service = self.service.clone().set(name, value);
    }

    /// PostgreSQL's version and the settings that decide its cost, as the server has them.
    pub async fn postgres_settings(&self) -> anyhow::Result<String> {
        let names = PRODUCTION.map(|(name, _)| format!("'{name}'")).join(", ");
        let sql = format!(
            "SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1) || ': '
                    || string_agg(name || ' ' || current_setting(name), ', ' ORDER BY n)
               FROM unnest(ARRAY['fsync', {names}]) WITH ORDINALITY AS setting(name, n)"
        );
        self.sql(&sql).await
    }

    /// Starts one more instance.
    pub async fn add_instance(&mut self) -> anyhow::Result<()> {
        self.instances.push(self.service.clone().start().await?);
        Ok(())
    }

    /// Ends all instances at once, and starts them again on the same ports. Returns how long it took until all
    /// served again.
    pub async fn restart_all(&mut self, signal: Signal) -> anyhow::Result<Duration> {
        for instance in &self.instances {
            instance.signal(signal)?;
        }
        for instance in &self.instances {
            instance.ended().await?;
        }
        let began = Instant::now();
        for instance in &mut self.instances {
            *instance = self.service.clone().on_ports_of(instance).launch()?;
        }
        for instance in &self.instances {
            instance.serving_within(START_TIMEOUT).await?;
        }
        Ok(began.elapsed())
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

    /// Runs SQL, and returns what psql prints.
    pub async fn sql(&self, sql: &str) -> anyhow::Result<String> {
        self.postgres.psql(DATABASE, sql).await
    }

    /// Runs a query whose result is one number.
    pub async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let text = self.sql(sql).await?;
        text.trim()
            .parse()
            .with_context(|| format!("{sql}: {text}"))
    }

    /// The plan of a fleet that connects to all instances, with a token for all its agents.
    pub async fn plan(&self, agents: u32) -> anyhow::Result<Plan> {
        let token = create_token(&self.database_url(), agents).await?;
        Ok(Plan::local(agents, self.targets(), token))
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

    /// The most memory that a running instance has taken so far, in bytes.
    pub fn peak_memory(&self) -> anyhow::Result<u64> {
        let running = self.instances.iter().filter(|one| !one.has_ended());
        let mut peaks = running.map(|one| Ok(Usage::of(one.pid())?.peak));
        peaks.try_fold(0, |most, peak: anyhow::Result<u64>| Ok(most.max(peak?)))
    }

    /// The memory that PostgreSQL's processes have besides what they share, in KiB.
    pub fn private_memory_of_postgres(&self) -> anyhow::Result<u64> {
        let postmaster = procfs::postmaster(self.postgres.data_dir())?;
        Ok(procfs::tree_private_kib(postmaster))
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

/// How many instances a fleet needs.
pub fn instances_for(agents: u32) -> usize {
    agents.div_ceil(AGENTS_PER_INSTANCE).max(1) as usize
}

/// Creates an auto-approving enrolment token.
pub async fn create_token(database_url: &str, uses: u32) -> anyhow::Result<String> {
    let inherited = env::vars_os();
    let inherited = inherited.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let uses = uses.to_string();
    let command = Program::named(SERVICE)?
        .arguments(TOKEN_CREATE.split(' ').chain([uses.as_str()]))
        .environment(inherited)
        .environment([("DATABASE_URL", database_url)]);
    let done = command.run().await?;
    let created = serde_json::from_str::<serde_json::Value>(&done.stdout).ok();
    let token = created.and_then(|created| Some(created["token"].as_str()?.to_owned()));
    token.with_context(|| format!("svc-ingest token create: {}", done.stderr))
}

fn postgres_options(durable: bool) -> PostgresOptions {
    let counting = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track", "top"),
    ];
    let mut options = match durable {
        true => PostgresOptions::production(),
        false => PostgresOptions::default(),
    };
    let counting = counting.map(|(name, value)| (name.into(), value.into()));
    options.settings.extend(counting);
    options
}
