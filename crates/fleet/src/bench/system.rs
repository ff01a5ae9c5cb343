//! The system that is measured: the service with its own PostgreSQL, or the bare echo server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use rustix::process::Signal;
use svc_harness::{Process, Program, eventually};
use svc_sandbox::{Identity, free_port};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{
    lab::{Lab, ResourceUsage, Settings},
    plan::Plan,
    procfs,
};

/// The bench sets the interval of the agents itself. The service's interval only must be long enough that it
/// never declares an agent silent.
const INTERVAL: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub enum System {
    Service(Box<Lab>),
    Echo(EchoServer),
}

#[derive(Clone, Copy, Debug)]
pub enum SystemKind {
    Service(Settings),
    Echo,
}

pub const SERVICE: SystemKind = instances(1);

/// The service as it is measured.
pub const fn instances(instances: usize) -> SystemKind {
    SystemKind::Service(Settings {
        instances,
        interval: INTERVAL,
        durable: true,
    })
}

impl System {
    pub async fn start(kind: SystemKind) -> anyhow::Result<System> {
        match kind {
            SystemKind::Echo => Ok(System::Echo(EchoServer::start().await?)),
            SystemKind::Service(settings) => {
                Ok(System::Service(Box::new(Lab::start(settings).await?)))
            }
        }
    }

    /// The plan of a fleet that connects to it.
    pub async fn plan(&self, agents: u32) -> anyhow::Result<Plan> {
        match self {
            System::Service(lab) => lab.plan(agents).await,
            System::Echo(echo) => Ok(Plan::local(agents, vec![echo.address], String::new())),
        }
    }

    /// Restarts the processes on the same ports and data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        match self {
            System::Echo(echo) => {
                echo.process.kill().await?;
                echo.process = echo.program.start()?;
                echo.wait_until_listening().await
            }
            System::Service(lab) => lab.restart_all(Signal::TERM).await.map(drop),
        }
    }

    pub async fn usage(&self) -> anyhow::Result<ResourceUsage> {
        match self {
            System::Service(lab) => lab.usage().await,
            System::Echo(echo) => Ok(ResourceUsage {
                services: procfs::usage(echo.process.pid())?,
                ..ResourceUsage::default()
            }),
        }
    }

    pub fn database_url(&self) -> Option<String> {
        match self {
            System::Service(lab) => Some(lab.database_url()),
            System::Echo(_) => None,
        }
    }

    /// The lab of the service; the echo server has none.
    pub fn lab(&mut self) -> anyhow::Result<&mut Lab> {
        match self {
            System::Service(lab) => Ok(lab),
            System::Echo(_) => anyhow::bail!("the echo server has no lab"),
        }
    }
}

/// The process of the bare echo server; dropping it kills the process.
#[derive(Debug)]
pub struct EchoServer {
    address: SocketAddr,
    program: Program,
    process: Process,
    _folder: TempDir,
}

impl EchoServer {
    async fn start() -> anyhow::Result<EchoServer> {
        let folder = tempfile::tempdir()?;
        let identity = Identity::server(&["localhost", "127.0.0.1"])?;
        let (certificate, key) = identity.write(folder.path(), "server")?;
        let port = free_port()?;
        let program = Program::named("svc-fleet")?.arguments([
            "bare-echo".to_owned(),
            format!("--port={port}"),
            format!("--cert={}", certificate.display()),
            format!("--key={}", key.display()),
        ]);
        let echo = EchoServer {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            process: program.start()?,
            program,
            _folder: folder,
        };
        echo.wait_until_listening().await?;
        Ok(echo)
    }

    async fn wait_until_listening(&self) -> anyhow::Result<()> {
        eventually("the echo server listens", async || {
            TcpStream::connect(self.address).await.is_ok()
        })
        .await
    }
}
