//! The service in this process, on ports that the kernel chooses.

use std::{ffi::OsString, net::SocketAddr, time::Duration};

use anyhow::Context;
use svc_front::listener::Limits;
use svc_harness::{Environment, NO_DATABASE, PATIENCE, health_becomes};
use svc_ingest::{
    config::{Config, Timing},
    server::{RunError, Server},
};
use svc_store::Migration;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{ActiveAgent, Site};

/// Most tests send a report and wait for its acknowledgement, again and again.
const BATCH_WAIT: Duration = Duration::from_millis(200);
const ACK_BACKSTOP: Duration = Duration::from_secs(1);

/// How an instance differs from the default one of its site.
#[derive(Clone, Debug)]
pub struct InstanceBuilder {
    environment: Environment,
    timing: fn(&mut Timing),
    limits: fn(&mut Limits),
    config: fn(&mut Config),
    later_migrations: &'static [Migration],
}

impl InstanceBuilder {
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            environment,
            timing: |_| {},
            limits: |_| {},
            config: |_| {},
            later_migrations: &[],
        }
    }

    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment = self.environment.set(name, value);
        self
    }

    /// Cuts notifications off, so that only the poll finds changes.
    pub fn without_notifications(self) -> Self {
        self.set("INGEST_LISTEN_DATABASE_URL", NO_DATABASE)
    }

    pub fn timing(mut self, tune: fn(&mut Timing)) -> Self {
        self.timing = tune;
        self
    }

    pub fn limits(mut self, tune: fn(&mut Limits)) -> Self {
        self.limits = tune;
        self
    }

    /// What no variable sets.
    pub fn config(mut self, tune: fn(&mut Config)) -> Self {
        self.config = tune;
        self
    }

    /// Makes it an instance of a later version, which has these migrations too.
    pub fn of_later_version(mut self, migrations: &'static [Migration]) -> Self {
        self.later_migrations = migrations;
        self
    }

    /// Starts it without waiting until it serves.
    pub async fn launch(self) -> anyhow::Result<Instance> {
        let mut config = Config::read(&|name| self.environment.get(name))?;
        config.grpc.address.set_port(0);
        config.http.set_port(0);
        config.timing.batch_wait = BATCH_WAIT;
        config.timing.ack_backstop = ACK_BACKSTOP;
        // A lost connection shows at once; the tests of the grace set one.
        config.timing.lost_grace = Duration::ZERO;
        (self.timing)(&mut config.timing);
        (self.limits)(&mut config.grpc.limits);
        (self.config)(&mut config);
        config.database.later_migrations = self.later_migrations;
        let server = Server::bind(config).await?;
        let (grpc, http) = (server.grpc_address()?, server.http_address()?);
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        Ok(Instance {
            grpc,
            http,
            stop: stop.drop_guard(),
            task,
        })
    }

    /// Starts it and waits until it serves.
    pub async fn start(self) -> anyhow::Result<Instance> {
        let instance = self.launch().await?;
        instance.serving().await?;
        Ok(instance)
    }

    /// Starts it and registers an agent there.
    pub async fn with_agent(self, site: &Site) -> anyhow::Result<(Instance, ActiveAgent)> {
        let instance = self.start().await?;
        let agent = ActiveAgent::new(site, instance.grpc, 1).await?;
        Ok((instance, agent))
    }

    /// Starts two of them.
    pub async fn start_pair(self) -> anyhow::Result<[Instance; 2]> {
        Ok([self.clone().start().await?, self.start().await?])
    }
}

/// A running service; dropping it asks it to stop.
#[derive(Debug)]
pub struct Instance {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    stop: DropGuard,
    task: JoinHandle<Result<(), RunError>>,
}

impl Instance {
    /// Waits until `/healthz` answers 200.
    pub async fn serving(&self) -> anyhow::Result<()> {
        health_becomes(self.http, 200, "").await.map(drop)
    }

    /// Asks it to stop without waiting.
    pub fn ask_to_stop(self) -> Stopping {
        self.stop.disarm().cancel();
        Stopping(self.task)
    }

    /// Stops it; fails unless it ends in time and without an error.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.ask_to_stop().ended().await
    }

    /// Waits until it ends by itself, and returns the error.
    pub async fn failure(self) -> anyhow::Result<String> {
        let ended = timeout(PATIENCE, self.task).await;
        let outcome = ended.context("the instance did not end")??;
        let error = outcome.err().context("the instance ended cleanly")?;
        Ok(format!("{:#}", anyhow::Error::from(error)))
    }
}

/// An instance that has been asked to stop.
#[derive(Debug)]
pub struct Stopping(JoinHandle<Result<(), RunError>>);

impl Stopping {
    pub async fn ended(self) -> anyhow::Result<()> {
        let ended = timeout(PATIENCE, self.0).await;
        Ok(ended.context("the instance did not stop")???)
    }
}
