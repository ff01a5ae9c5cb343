//! The real `svc-ingest` binary as a child process.

use std::{
    collections::HashSet,
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use svc_sandbox::free_port;

use crate::{Environment, Finished, NO_DATABASE, PATIENCE, Process, Program, get};

const PORTS: [&str; 2] = ["INGEST_GRPC_PORT", "INGEST_HTTP_PORT"];

#[derive(Clone, Debug)]
pub struct ServiceBuilder {
    program: &'static str,
    environment: Environment,
    arguments: Vec<String>,
}

impl ServiceBuilder {
    pub fn new(environment: Environment) -> Self {
        Self {
            program: "svc-ingest",
            environment,
            arguments: Vec::new(),
        }
    }

    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment = self.environment.set(name, value);
        self
    }

    pub fn unset(mut self, name: &str) -> Self {
        self.environment = self.environment.unset(name);
        self
    }

    /// Another binary than `svc-ingest`, by its name: see [`Program::named`].
    pub fn program(mut self, name: &'static str) -> Self {
        self.program = name;
        self
    }

    /// Cuts notifications off, so that only the poll finds changes.
    pub fn without_notifications(self) -> Self {
        self.set("INGEST_LISTEN_DATABASE_URL", NO_DATABASE)
    }

    /// A command and its flags; without any, it serves.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Takes the ports of a process that has ended.
    pub fn on_ports_of(self, ended: &ServiceProcess) -> Self {
        self.set(PORTS[0], ended.grpc.port().to_string())
            .set(PORTS[1], ended.http.port().to_string())
    }

    /// Starts it without waiting. Ports that were not set are free ones.
    pub fn launch(mut self) -> anyhow::Result<ServiceProcess> {
        for name in PORTS {
            if self.environment.get(name).is_none() {
                self = self.set(name, own_port()?.to_string());
            }
        }
        let program = Program::named(self.program)?
            .arguments(&self.arguments)
            .environment(self.environment.iter());
        Ok(ServiceProcess {
            grpc: self.address(PORTS[0]),
            http: self.address(PORTS[1]),
            process: program.start()?,
        })
    }

    /// Starts it and waits until it serves.
    pub async fn start(self) -> anyhow::Result<ServiceProcess> {
        let service = self.launch()?;
        service.serving().await?;
        Ok(service)
    }

    /// Starts two of them.
    pub async fn start_pair(self) -> anyhow::Result<[ServiceProcess; 2]> {
        Ok([self.clone().start().await?, self.start().await?])
    }

    /// Runs it to its end.
    pub async fn run(self) -> anyhow::Result<Finished> {
        self.launch()?.finished().await
    }

    /// Runs it to its end; fails unless it exits with this code.
    pub async fn exits(self, code: i32) -> anyhow::Result<Finished> {
        let ended = self.run().await?;
        ensure!(ended.code == Some(code), "not {code}: {ended:?}");
        Ok(ended)
    }

    /// Port 0, where nothing listens, if the variable holds no port.
    fn address(&self, variable: &str) -> SocketAddr {
        let text = self.environment.get(variable).unwrap_or_default();
        let port = text.to_str().and_then(|text| text.parse().ok());
        (Ipv4Addr::LOCALHOST, port.unwrap_or_default()).into()
    }
}

/// A running service; dropping it kills it.
#[derive(Debug)]
pub struct ServiceProcess {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    process: Process,
}

impl ServiceProcess {
    pub async fn serving(&self) -> anyhow::Result<()> {
        self.serving_within(PATIENCE).await
    }

    /// Waits until `/healthz` answers 200; fails at once if the process ends first.
    pub async fn serving_within(&self, patience: Duration) -> anyhow::Result<()> {
        let healthy = async || {
            let answer = get(self.http, "/healthz").await;
            answer.is_ok_and(|answer| answer.status == 200)
        };
        svc_sandbox::eventually("the process serves", patience, async || {
            self.has_ended() || healthy().await
        })
        .await
        .with_context(|| self.logs())?;
        if self.has_ended() {
            self.ended().await?;
            bail!("the process ended: {}", self.logs());
        }
        Ok(())
    }
}

impl Deref for ServiceProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A free port that no other test of this process has.
fn own_port() -> anyhow::Result<u16> {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    loop {
        let port = free_port()?;
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(port) {
            return Ok(port);
        }
    }
}
