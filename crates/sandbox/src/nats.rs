//! A real NATS server with JetStream, on loopback, that stops with us.
//!
//! Invariant: a `Nats` that `start` returned greets its clients, and what JetStream stored survives
//! `kill` and `start_again`: it is on disk, in its folder, and the address stays the same.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use rustix::process::Signal;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::child;
use crate::folder::{Folder, private_folder};
use crate::ports::free_port;
use crate::programs;
use crate::server::Server;

const START_TRIES: u32 = 5;
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Where JetStream stores, kept at the end; none: a temporary folder, removed at the end.
    pub data_dir: Option<PathBuf>,
    /// None: a free one.
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

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.site.port)
    }

    pub fn port(&self) -> u16 {
        self.site.port
    }

    pub fn data_dir(&self) -> &Path {
        &self.site.data_dir
    }

    /// Stops it in its tracks (SIGSTOP) until `thaw`.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.server.freeze()
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.server.thaw();
        Ok(())
    }

    /// Kills it (SIGKILL): nothing is flushed, no client is told.
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
        let (data_dir, temporary) = Folder::given_or_new(options.data_dir, "jetstream")?;
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

/// It says so itself and greets: a stranger on the same port would greet us too.
async fn is_up(server: &Server, port: u16) -> bool {
    server.said().contains("Server is ready") && greets(port).await
}

async fn greets(port: u16) -> bool {
    let mut start = [0; 5];
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(mut connection) => connection.read_exact(&mut start).await.is_ok() && start == *b"INFO ",
        Err(_) => false,
    }
}

fn may_pass(server: &Server) -> bool {
    server.ended().is_some() && server.said().contains("address already in use")
}
