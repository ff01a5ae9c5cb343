//! A real PostgreSQL server of our own, on loopback, that stops with us.
//!
//! Invariant: a `Postgres` that `start` returned accepts connections and is the server of *its*
//! folder, not a stranger on the same port. It is a child process and a folder and needs no
//! runtime, so one server can be shared by tests that each have their own. Who may connect is
//! whoever is on this machine (`trust`): it is for development and tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_postgres::{NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::child;
use crate::folder::{Folder, private_folder};
use crate::ports::free_port;
use crate::programs::{self, User};
use crate::server::Server;

const USER: &str = "svc";
const START_TRIES: u32 = 5;
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What a server refuses to start for that time, or another port, may mend.
const PASSING_FAULTS: [&str; 2] = ["Address already in use", "lock file \"postmaster.pid\""];

#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// Where the data are, kept at the end; none: a temporary folder, removed at the end.
    pub data_dir: Option<PathBuf>,
    /// None: a free one.
    pub port: Option<u16>,
    /// Whether commits survive a crash of the machine; tests do not need that and are faster
    /// without.
    pub durable: bool,
    /// Further settings, as in postgresql.conf; they override ours.
    pub settings: Vec<(String, String)>,
}

/// A running server; dropping it stops it, blocking for as long as a fast shutdown takes.
#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: the server before its folder.
    server: Arc<Server>,
    site: Site,
}

/// All that a server needs to be started again where it was.
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
    /// Starts a server, initialising its folder where that is new, and waits until it accepts.
    pub async fn start(options: PostgresOptions) -> anyhow::Result<Postgres> {
        let mut site = Site::choose(options)?;
        site.initialise().await?;
        let server = site.start().await?;
        Ok(Postgres { server, site })
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

    /// Runs SQL and gives its rows as `psql -At` would: a line each, columns separated by `|`.
    pub async fn psql(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        query(&self.url(database), sql).await
    }

    pub async fn create_database(&self, name: &str, template: Option<&str>) -> anyhow::Result<()> {
        let name = quoted(name);
        let template = template.map(|template| format!(" TEMPLATE {}", quoted(template)));
        let sql = format!("CREATE DATABASE {name}{}", template.unwrap_or_default());
        self.psql("postgres", &sql).await.map(drop)
    }

    /// Stops every process of the server in its tracks (SIGSTOP) until `thaw`.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.server.freeze()
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.server.thaw();
        Ok(())
    }

    /// An immediate shutdown: connections are cut, and the next start recovers from the log.
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
        let (data_dir, temporary) = Folder::given_or_new(options.data_dir.clone(), "data")?;
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

    /// `initdb`, unless it was done before. It works beside the folder, which is then moved into
    /// place whole: one that was killed half way is begun anew.
    async fn initialise(&self) -> anyhow::Result<()> {
        if self.data_dir.join("PG_VERSION").exists() {
            return Ok(());
        }
        let unfinished = self.data_dir.with_added_extension("unfinished");
        let _ = std::fs::remove_dir_all(&unfinished);
        private_folder(&unfinished, self.user)?;
        let initdb = child::spawn(self.initdb(&unfinished))?;
        let output = spawn_blocking(move || initdb.wait_with_output()).await??;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "initdb: {complaint}");
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

    /// The death signal is SIGINT, a fast shutdown: `svc-ingest dev` keeps its data when it is
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

    /// Whether the server that answers on our port is the one of our folder.
    async fn is_ours(&self) -> bool {
        let answer = query(&self.url("postgres"), "SHOW data_directory").await;
        answer.is_ok_and(|folder| Path::new(&folder) == self.data_dir)
    }
}

fn may_pass(server: &Server) -> bool {
    let log = server.said();
    server.ended().is_some() && PASSING_FAULTS.iter().any(|fault| log.contains(fault))
}

/// Runs SQL on any database without TLS, and gives its rows as `psql -At` would. One connection for
/// one question: nothing stays open for a runtime to keep.
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
