//! A real NATS server with JetStream, on loopback.
//!
//! Invariant: a `Nats` that `start` returned accepts clients. What JetStream has stored survives
//! `kill` and `start_again`, on the same address.

use std::{
    ffi::OsString,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use rustix::process::Signal;
use tokio::{io::AsyncReadExt, net::TcpStream, task::spawn_blocking, time::sleep};

use crate::{
    child,
    folder::{Folder, Medium, private_folder},
    ports::free_port,
    programs,
    server::Server,
};

const START_TRIES: u32 = 5;
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// The folder of JetStream, which is kept. `None`: a temporary folder, which is removed at the
    /// end.
    pub data_dir: Option<PathBuf>,
    /// `None`: a free port.
    pub port: Option<u16>,
    /// Further arguments of nats-server, such as `--user` or `--tlscert`.
    pub arguments: Vec<OsString>,
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Nats {
    // Dropped in this order: the server before its folder.
    server: Arc<Server>,
    site: Site,
}

#[derive(Debug)]
struct Site {
    program: PathBuf,
    data_dir: PathBuf,
    wanted_port: Option<u16>,
    port: u16,
    arguments: Vec<OsString>,
    temporary: Option<Folder>,
}

impl Nats {
    pub async fn start(options: NatsOptions) -> anyhow::Result<Nats> {
        let mut site = Site::choose(options)?;
        let server = site.start().await?;
        Ok(Nats { server, site })
    }

    /// Starts a server with these arguments.
    pub async fn with(arguments: impl IntoIterator<Item: Into<OsString>>) -> anyhow::Result<Nats> {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Nats::start(NatsOptions {
            arguments,
            ..NatsOptions::default()
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.site.port)
    }

    pub fn port(&self) -> u16 {
        self.site.port
    }

    pub fn data_dir(&self) -> &Path {
        &self.site.data_dir
    }

    /// Freezes it (SIGSTOP) until `thaw`.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.server.freeze()
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.server.thaw();
        Ok(())
    }

    /// Kills it (SIGKILL): it flushes nothing and closes no connection.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let server = Arc::clone(&self.server);
        spawn_blocking(move || server.stop(Signal::KILL, STOP_PATIENCE)).await?;
        Ok(())
    }

    /// Starts it after a kill: the same port, the same streams.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.site.wanted_port = Some(self.site.port);
        self.server = self.site.start().await?;
        Ok(())
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.server.stop(Signal::TERM, STOP_PATIENCE);
    }
}

impl Site {
    fn choose(options: NatsOptions) -> anyhow::Result<Site> {
        let program = programs::nats_server()?;
        let (data_dir, temporary) =
            Folder::given_or_new(options.data_dir, "jetstream", Medium::Disk)?;
        private_folder(&data_dir, None)?;
        Ok(Site {
            program,
            data_dir,
            wanted_port: options.port,
            port: 0,
            arguments: options.arguments,
            temporary,
        })
    }

    async fn start(&mut self) -> anyhow::Result<Arc<Server>> {
        for attempt in 1.. {
            self.port = self.wanted_port.map_or_else(free_port, Ok)?;
            let server = self.spawn()?;
            match server.wait_until(|| is_up(&server, self.port)).await {
                Ok(()) => return Ok(Arc::new(server)),
                Err(error) if attempt == START_TRIES || !may_pass(&server) => return Err(error),
                Err(_) => sleep(RETRY_PAUSE * attempt).await,
            }
        }
        bail!("nats-server did not start")
    }

    fn spawn(&self) -> anyhow::Result<Server> {
        let mut command = child::command(&self.program, None, "KILL");
        command.arg("-js").arg("-sd").arg(&self.data_dir);
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string()]);
        command.args(&self.arguments);
        if let Some(folder) = &self.temporary {
            command.stdin(folder.lock()?);
        }
        Server::spawn(command, &self.data_dir.join("server.log"))
    }
}

/// Checks its log and its greeting: another server on the same port would greet too.
async fn is_up(server: &Server, port: u16) -> bool {
    server.logged().contains("Server is ready") && greets(port).await
}

async fn greets(port: u16) -> bool {
    let mut start = [0; 5];
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(mut connection) => connection.read_exact(&mut start).await.is_ok() && start == *b"INFO ",
        Err(_) => false,
    }
}

fn may_pass(server: &Server) -> bool {
    server.ended().is_some() && server.logged().contains("address already in use")
}
