//! A real PostgreSQL server on loopback, for development and tests.
//!
//! Invariant: a `Postgres` that `start` returned accepts connections and is the server of *its*
//! folder, not another one on the same port. It needs no runtime, so tests that each have their own
//! can share one server. Every user of this machine may connect (`trust`).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use tokio::{task::spawn_blocking, time::sleep};
use tokio_postgres::{NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::{
    child,
    folder::{Folder, Medium, private_folder},
    ports::free_port,
    programs::{self, User},
    server::Server,
};

const USER: &str = "svc";
const START_TRIES: u32 = 5;
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Errors at the start that may pass with time or on another port.
const PASSING_FAULTS: [&str; 2] = ["Address already in use", "lock file \"postmaster.pid\""];

/// What docs/sizing.md recommends. With PostgreSQL's own defaults a checkpoint every few minutes, and a cache
/// that holds little of the tables, would cost more than the statements that are measured.
pub const PRODUCTION: [(&str, &str); 6] = [
    ("shared_buffers", "1GB"),
    ("wal_compression", "lz4"),
    ("checkpoint_timeout", "15min"),
    ("checkpoint_completion_target", "0.9"),
    ("max_wal_size", "8GB"),
    ("jit", "off"),
];

#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// The data folder, which is kept. `None`: a temporary folder, which is removed at the end.
    pub data_dir: Option<PathBuf>,
    /// `None`: a free port.
    pub port: Option<u16>,
    /// Whether commits survive a crash of the machine. Tests do not need that and are faster
    /// without.
    pub durable: bool,
    /// Further settings, as in postgresql.conf; they override ours.
    pub settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// A server for measurements: durable, with the settings of [`PRODUCTION`].
    pub fn production() -> PostgresOptions {
        let setting = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        PostgresOptions {
            durable: true,
            settings: PRODUCTION.map(setting).to_vec(),
            ..PostgresOptions::default()
        }
    }
}

/// A running server. Dropping it blocks for a fast shutdown.
#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: the server before its folder.
    server: Arc<Server>,
    site: Site,
}

/// What is needed to start the server again.
#[derive(Debug)]
struct Site {
    programs: PathBuf,
    user: Option<User>,
    data_dir: PathBuf,
    port: u16,
    options: PostgresOptions,
    temporary: Option<Folder>,
}

impl Postgres {
    /// Starts a server, initialises a new folder, and waits until the server accepts connections.
    pub async fn start(options: PostgresOptions) -> anyhow::Result<Postgres> {
        let mut site = Site::choose(options)?;
        site.initialise(|folder| site.initdb(folder)).await?;
        let server = site.start().await?;
        Ok(Postgres { server, site })
    }

    /// Starts a standby of this server: a copy that follows it by streaming replication and answers
    /// reads. It is on a port of its own.
    pub async fn standby(&self) -> anyhow::Result<Postgres> {
        self.standby_through(self.port()).await
    }

    /// Starts a standby that reaches this server through a proxy on `port`.
    pub async fn standby_through(&self, port: u16) -> anyhow::Result<Postgres> {
        // This makes the copy a standby, which follows the server that it was copied from.
        self.copy(port, &["--write-recovery-conf"]).await
    }

    /// Starts a server from a base backup that is taken now. It is on a port of its own, and does not follow this one.
    pub async fn restored(&self) -> anyhow::Result<Postgres> {
        self.copy(self.port(), &[]).await
    }

    async fn copy(&self, origin: u16, arguments: &[&str]) -> anyhow::Result<Postgres> {
        let mut site = Site::choose(PostgresOptions {
            data_dir: None,
            port: None,
            ..self.site.options.clone()
        })?;
        site.initialise(|folder| site.base_backup(origin, folder, arguments))
            .await?;
        let server = site.start().await?;
        Ok(Postgres { server, site })
    }

    /// Makes a standby a primary.
    pub async fn promote(&self) -> anyhow::Result<()> {
        let promoted = self.psql("postgres", "SELECT pg_promote(true, 60)").await?;
        ensure!(promoted == "t", "the standby was not promoted");
        Ok(())
    }

    /// Refuses writes from now on, as a primary does that was replaced; or accepts them again.
    pub async fn set_read_only(&self, read_only: bool) -> anyhow::Result<()> {
        let setting = format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}");
        self.psql("postgres", &setting).await?;
        self.psql("postgres", "SELECT pg_reload_conf()").await?;
        Ok(())
    }

    pub fn url(&self, database: &str) -> String {
        self.site.url(database)
    }

    pub fn port(&self) -> u16 {
        self.site.port
    }

    pub fn data_dir(&self) -> &Path {
        &self.site.data_dir
    }

    /// Runs SQL and returns its rows as `psql -At` does: a line each, with `|` between columns.
    pub async fn psql(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        query(&self.url(database), sql).await
    }

    pub async fn create_database(&self, name: &str, template: Option<&str>) -> anyhow::Result<()> {
        let name = quoted(name);
        let template = template.map(|template| format!(" TEMPLATE {}", quoted(template)));
        let sql = format!("CREATE DATABASE {name}{}", template.unwrap_or_default());
        self.psql("postgres", &sql).await.map(drop)
    }

    /// Freezes every process of the server (SIGSTOP) until `thaw`.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.server.freeze()
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.server.thaw();
        Ok(())
    }

    /// An immediate shutdown: it cuts connections, and the next start recovers from the WAL.
    pub async fn stop_immediate(&mut self) -> anyhow::Result<()> {
        let server = Arc::clone(&self.server);
        spawn_blocking(move || server.stop(Signal::QUIT, STOP_PATIENCE)).await?;
        Ok(())
    }

    /// Starts it after a stop: the same port, the same data.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.site.options.port = Some(self.site.port);
        self.server = self.site.start().await?;
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.server.stop(Signal::INT, STOP_PATIENCE);
    }
}

impl Site {
    fn choose(options: PostgresOptions) -> anyhow::Result<Site> {
        let programs = programs::postgres_folder()?;
        let user = programs::unprivileged_user()?;
        // A server that need not survive a crash may be in memory. On ext4 the search for free inodes, of which every new database
        // takes hundreds, was half of PostgreSQL's processor time in the tests.
        let medium = if options.durable {
            Medium::Disk
        } else {
            Medium::Memory
        };
        let (data_dir, temporary) = Folder::given_or_new(options.data_dir.clone(), "data", medium)?;
        Ok(Site {
            programs,
            user,
            data_dir,
            port: 0,
            options,
            temporary,
        })
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Fills the folder with `make`, unless it has been initialised. That works in a folder beside, which
    /// is then renamed, so a killed program leaves nothing that looks complete.
    async fn initialise(&self, make: impl FnOnce(&Path) -> Command) -> anyhow::Result<()> {
        if self.data_dir.join("PG_VERSION").exists() {
            return Ok(());
        }
        let unfinished = self.data_dir.with_added_extension("unfinished");
        let _ = std::fs::remove_dir_all(&unfinished);
        private_folder(&unfinished, self.user)?;
        let made = child::spawn(make(&unfinished))?;
        let output = spawn_blocking(move || made.wait_with_output()).await??;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{complaint}");
        let moved = std::fs::rename(&unfinished, &self.data_dir);
        moved.with_context(|| self.data_dir.display().to_string())
    }

    fn initdb(&self, folder: &Path) -> Command {
        let mut command = self.command("initdb", folder, "KILL");
        command.args(["--username", USER, "--auth=trust"]);
        command.args(["--encoding=UTF8", "--locale=C.UTF-8"]);
        if !self.options.durable {
            command.arg("--no-sync");
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn base_backup(&self, origin: u16, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command("pg_basebackup", folder, "KILL");
        command.args(["--host=127.0.0.1", "--username", USER, "--port"]);
        command.arg(origin.to_string());
        command
            .args(["--checkpoint=fast", "--no-sync"])
            .args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    async fn start(&mut self) -> anyhow::Result<Arc<Server>> {
        for attempt in 1.. {
            self.port = self.options.port.map_or_else(free_port, Ok)?;
            let server = self.spawn()?;
            match server.wait_until(|| self.is_ours()).await {
                Ok(()) => return Ok(Arc::new(server)),
                Err(error) if attempt == START_TRIES || !may_pass(&server) => return Err(error),
                Err(_) => sleep(RETRY_PAUSE * attempt).await,
            }
        }
        bail!("PostgreSQL did not start")
    }

    /// The death signal is SIGINT, a fast shutdown: `svc-dev` keeps its data when it is
    /// killed.
    fn spawn(&self) -> anyhow::Result<Server> {
        let mut command = self.command("postgres", &self.data_dir, "INT");
        command.args(["-p", &self.port.to_string()]);
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        if let Some(folder) = &self.temporary {
            command.stdin(folder.lock()?);
        }
        Server::spawn(command, &self.data_dir.join("server.log"))
    }

    fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        let ours = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "400"),
            ("shared_buffers", "128MB"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
            // As docs/sizing.md recommends: compiling a view of many partitions takes longer than reading it.
            ("jit", "off"),
        ];
        let volatile = [("fsync", "off"), ("full_page_writes", "off")];
        let volatile = volatile.into_iter().filter(|_| !self.options.durable);
        let further = self.options.settings.iter();
        let further = further.map(|(name, value)| (name.as_str(), value.as_str()));
        ours.into_iter().chain(volatile).chain(further)
    }

    fn command(&self, program: &str, folder: &Path, death_signal: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = child::command(&program, self.user, death_signal);
        command.arg("-D").arg(folder).current_dir(folder);
        command.env("LC_ALL", "C.UTF-8");
        command
    }

    /// Whether the server on our port is the one of our folder.
    async fn is_ours(&self) -> bool {
        let answer = query(&self.url("postgres"), "SHOW data_directory").await;
        answer.is_ok_and(|folder| Path::new(&folder) == self.data_dir)
    }
}

fn may_pass(server: &Server) -> bool {
    let log = server.logged();
    server.ended().is_some() && PASSING_FAULTS.iter().any(|fault| log.contains(fault))
}

/// Runs SQL on any database without TLS and returns its rows as `psql -At` does. It opens a
/// connection for each call, so none outlives a runtime.
pub async fn query(url: &str, sql: &str) -> anyhow::Result<String> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let answer = client.simple_query(sql).await;
    drop(client);
    let _ = connection.await;
    let answer = answer.with_context(|| sql.to_owned())?;
    Ok(answer
        .iter()
        .filter_map(row_text)
        .collect::<Vec<_>>()
        .join("\n"))
}

fn row_text(message: &SimpleQueryMessage) -> Option<String> {
    match message {
        SimpleQueryMessage::Row(row) => Some(columns(row).collect::<Vec<_>>().join("|")),
        _ => None,
    }
}

fn columns(row: &SimpleQueryRow) -> impl Iterator<Item = &str> {
    (0..row.len()).map(|column| row.get(column).unwrap_or_default())
}

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
