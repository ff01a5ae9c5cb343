//! What is measured: the service on its own PostgreSQL, or the bare echo.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::Context;
use svc_sandbox::{Identity, dying_with_us, free_port, spawn};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{
    lab::{Lab, Settings, Spent},
    proc,
};

const START_PATIENCE: Duration = Duration::from_secs(20);
/// Agents are told what to do by the bench; the service is only not to miss them.
const INTERVAL: Duration = Duration::from_hours(1);

#[derive(Debug)]
pub enum Subject {
    Service(Box<Lab>),
    Echo(Echo),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Service { instances: usize },
    Echo,
}

impl Subject {
    pub async fn start(kind: Kind) -> anyhow::Result<Subject> {
        match kind {
            Kind::Echo => Ok(Subject::Echo(Echo::start().await?)),
            Kind::Service { instances } => {
                let lab = Lab::start(Settings {
                    instances,
                    interval: INTERVAL,
                    durable: true,
                    variables: vec![],
                });
                Ok(Subject::Service(Box::new(lab.await?)))
            }
        }
    }

    pub fn targets(&self) -> Vec<SocketAddr> {
        match self {
            Subject::Service(lab) => lab.targets(),
            Subject::Echo(echo) => vec![echo.address],
        }
    }

    pub async fn token(&self, uses: u32) -> anyhow::Result<String> {
        match self {
            Subject::Service(lab) => lab.token(uses).await,
            Subject::Echo(_) => Ok(String::new()),
        }
    }

    /// Processes that have held no agent yet, on the same ports and data.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        match self {
            Subject::Echo(echo) => {
                echo.stop();
                echo.child = launch(&echo.folder, echo.address)?;
                echo.answers().await
            }
            Subject::Service(lab) => {
                for index in 0..lab.instances.len() {
                    lab.instances[index].signal(rustix::process::Signal::TERM)?;
                    lab.instances[index].wait_for_end().await?;
                    lab.start_again(index).await?;
                }
                Ok(())
            }
        }
    }

    pub async fn spent(&self) -> anyhow::Result<Spent> {
        match self {
            Subject::Service(lab) => lab.spent().await,
            Subject::Echo(echo) => Ok(Spent {
                services: proc::cost(echo.child.id())?,
                ..Spent::default()
            }),
        }
    }

    pub fn database_url(&self) -> Option<String> {
        match self {
            Subject::Service(lab) => Some(lab.database_url()),
            Subject::Echo(_) => None,
        }
    }

    /// The lab of a service.
    pub fn lab(&mut self) -> anyhow::Result<&mut Lab> {
        match self {
            Subject::Service(lab) => Ok(lab),
            Subject::Echo(_) => anyhow::bail!("the echo has no lab"),
        }
    }
}

/// The bare echo as a process; killed when it is dropped.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Echo {
    async fn start() -> anyhow::Result<Echo> {
        let folder = tempfile::tempdir()?;
        Identity::server(&["localhost", "127.0.0.1"])?.write(folder.path(), "server")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let child = launch(&folder, address)?;
        let echo = Echo {
            address,
            child,
            folder,
        };
        echo.answers().await?;
        Ok(echo)
    }

    async fn answers(&self) -> anyhow::Result<()> {
        svc_sandbox::eventually("the echo answers", START_PATIENCE, async || {
            TcpStream::connect(self.address).await.is_ok()
        })
        .await
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop();
    }
}

fn launch(folder: &TempDir, address: SocketAddr) -> anyhow::Result<Child> {
    let own = std::env::current_exe().context("this program's own path")?;
    let mut command = dying_with_us(&own);
    command.args(["bare-echo", "--port", &address.port().to_string()]);
    command.arg("--cert").arg(folder.path().join("server.crt"));
    command.arg("--key").arg(folder.path().join("server.key"));
    command.stdout(Stdio::null());
    spawn(command)
}
