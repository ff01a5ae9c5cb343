//! The system that is measured: the service with its own PostgreSQL, or the bare echo server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::Context;
use rustix::process::Signal;
use svc_sandbox::{Identity, dying_with_us, free_port, spawn};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{
    lab::{Lab, ResourceUsage, Settings},
    procfs,
};

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The bench sets the interval of the agents itself. The service's interval only must be long enough that it
/// never declares an agent silent.
const INTERVAL: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub enum System {
    Service(Box<Lab>),
    Echo(EchoServer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemKind {
    Service { instances: usize },
    Echo,
}

impl System {
    pub async fn start(kind: SystemKind) -> anyhow::Result<System> {
        match kind {
            SystemKind::Echo => Ok(System::Echo(EchoServer::start().await?)),
            SystemKind::Service { instances } => {
                let lab = Lab::start(Settings {
                    instances,
                    interval: INTERVAL,
                    durable: true,
                });
                Ok(System::Service(Box::new(lab.await?)))
            }
        }
    }

    pub fn targets(&self) -> Vec<SocketAddr> {
        match self {
            System::Service(lab) => lab.targets(),
            System::Echo(echo) => vec![echo.address],
        }
    }

    pub async fn token(&self, uses: u32) -> anyhow::Result<String> {
        match self {
            System::Service(lab) => lab.token(uses).await,
            System::Echo(_) => Ok(String::new()),
        }
    }

    /// Restarts the processes on the same ports and data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        match self {
            System::Echo(echo) => {
                echo.stop();
                echo.child = launch(&echo.folder, echo.address)?;
                echo.wait_until_listening().await
            }
            System::Service(lab) => {
                for index in 0..lab.instances.len() {
                    lab.instances[index].stop(Signal::TERM).await?;
                    lab.restart(index).await?;
                }
                Ok(())
            }
        }
    }

    pub async fn usage(&self) -> anyhow::Result<ResourceUsage> {
        match self {
            System::Service(lab) => lab.usage().await,
            System::Echo(echo) => Ok(ResourceUsage {
                services: procfs::usage(echo.child.id())?,
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
    child: Child,
    folder: TempDir,
}

impl EchoServer {
    async fn start() -> anyhow::Result<EchoServer> {
        let folder = tempfile::tempdir()?;
        Identity::server(&["localhost", "127.0.0.1"])?.write(folder.path(), "server")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let child = launch(&folder, address)?;
        let echo = EchoServer {
            address,
            child,
            folder,
        };
        echo.wait_until_listening().await?;
        Ok(echo)
    }

    async fn wait_until_listening(&self) -> anyhow::Result<()> {
        svc_sandbox::eventually("the echo server listens", START_TIMEOUT, async || {
            TcpStream::connect(self.address).await.is_ok()
        })
        .await
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn launch(folder: &TempDir, address: SocketAddr) -> anyhow::Result<Child> {
    let own = std::env::current_exe().context("the path of this program")?;
    let mut command = dying_with_us(&own);
    command.args(["bare-echo", "--port", &address.port().to_string()]);
    command.arg("--cert").arg(folder.path().join("server.crt"));
    command.arg("--key").arg(folder.path().join("server.key"));
    command.stdout(Stdio::null());
    spawn(command)
}
