//! An installed agent: a data folder and a machine of its own. It runs in this process with shorter
//! waits, or as the real binary.

use std::{
    collections::BTreeMap, net::SocketAddr, path::PathBuf, process::Command, sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use svc_agent::{
    agent::{Agent, AgentError, Surroundings},
    caller::Facts,
    config::{Config, Flags},
    recorder::Recorder,
    status::{self, Enrolment, Status},
    timing::Timing,
};
use svc_proto::contract::BackoffBounds;
use svc_sandbox::free_port;
use svc_testkit::{
    Finished, Instance, PATIENCE, Program, Proxy, Site, Tables, TokenRules, eventually, machine,
    token,
};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub const PRESENCE: &str = "SELECT presence FROM agent_state";
pub const EPOCH: &str = "SELECT presence, epoch FROM agent_state";
pub const TIMES_OFFLINE: &str =
    "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";

/// Shorter waits in the same proportions; the wait of an hour stays an hour.
pub fn quick() -> Timing {
    Timing {
        backoff: BackoffBounds {
            first: Duration::from_millis(100),
            most: Duration::from_secs(1),
        },
        settled: Duration::from_secs(5),
        replaced: Duration::from_secs(2),
        in_use: Duration::from_secs(1),
        new_key: Duration::from_millis(200),
        status: Duration::from_millis(50),
        backfill: Duration::from_millis(100),
        ..Timing::default()
    }
}

/// An installation of the agent.
#[derive(Debug)]
pub struct Installed {
    folder: TempDir,
    /// Where its data folder is, if not in a folder of its own.
    pub home: Option<PathBuf>,
    pub config_file: Option<PathBuf>,
    pub addresses: Vec<SocketAddr>,
    pub token: String,
    pub ca_cert_file: PathBuf,
    pub surroundings: Surroundings,
    pub settings: Vec<(&'static str, String)>,
}

/// A site whose service runs, and an agent installed with a token of these rules.
pub async fn installed(rules: TokenRules) -> Result<(Site, Instance, Installed)> {
    let (site, service) = Site::with_instance().await?;
    let secret = token(&site, rules).await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
    Ok((site, service, installed))
}

impl Installed {
    /// Installs it on the machine of this number, with the certificate of the site's instances.
    pub fn new(site: &Site, number: u32, addresses: &[SocketAddr], token: &str) -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            home: None,
            config_file: None,
            addresses: addresses.to_vec(),
            token: token.into(),
            ca_cert_file: site.path("server.crt"),
            surroundings: Surroundings {
                facts: Facts::Given(Box::new(machine(number))),
                timing: quick(),
                ..Surroundings::default()
            },
            settings: Vec::new(),
        })
    }

    pub fn path(&self) -> PathBuf {
        let home = self.home.as_deref().unwrap_or(self.folder.path());
        home.join("agent")
    }

    /// Installs it on a machine that reaches no service.
    pub fn without_service(site: &Site) -> Result<Self> {
        let unreachable = ([127, 0, 0, 1], free_port()?).into();
        Self::new(site, 1, &[unreachable], "")
    }

    /// Copies the data folder to another machine.
    pub fn cloned(&self, site: &Site, number: u32) -> Result<Self> {
        let copy = Self::new(site, number, &self.addresses, &self.token)?;
        let cp = Command::new("cp")
            .arg("-a")
            .args([self.path(), copy.path()])
            .status()?;
        ensure!(cp.success(), "cp: {cp}");
        Ok(copy)
    }

    /// Puts a network with faults between it and its instances.
    pub async fn behind_proxy(&mut self) -> Result<Proxy> {
        let proxy = Proxy::start(std::mem::take(&mut self.addresses)).await?;
        self.addresses = vec![proxy.address()];
        Ok(proxy)
    }

    /// Settings by name.
    fn values(&self) -> BTreeMap<&'static str, String> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let values = [
            ("ingest_address", addresses.join(",")),
            ("ca_cert_file", self.ca_cert_file.display().to_string()),
            ("enrolment_token", self.token.clone()),
            ("data_dir", self.path().display().to_string()),
        ];
        values.into_iter().chain(self.settings.clone()).collect()
    }

    fn config(&self) -> Result<Config> {
        let values = self.values();
        let file = self.config_file.clone();
        Ok(Config::read(&Flags { file, values }, &|_| None)?)
    }

    /// The real binary, with these arguments and the settings of this installation.
    pub fn process(&self, arguments: &[&str]) -> Result<Program> {
        let program = Program::named("svc-agent")?;
        Ok(self.with_settings(program.arguments(arguments)))
    }

    /// A program that starts the binary, with the settings of this installation.
    pub fn with_settings(&self, program: Program) -> Program {
        let variable = |name: &str| format!("SVC_AGENT_{}", name.to_uppercase());
        let variables = self.values().into_iter();
        program.environment(variables.map(|(name, value)| (variable(name), value)))
    }

    /// Runs a command of the real binary to its end, which must be with this exit code.
    pub async fn run(&self, arguments: &[&str], code: i32) -> Result<Finished> {
        let finished = self.process(arguments)?.run().await?;
        ensure!(finished.code == Some(code), "{finished:?}");
        Ok(finished)
    }

    pub fn start(&self) -> Result<Running> {
        let agent = Agent::open(self.config()?, self.surroundings.clone())?;
        let recorder = agent.recorder();
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent.run(stop.clone()));
        Ok(Running {
            recorder,
            stop: stop.drop_guard(),
            task,
        })
    }

    /// What `svc-agent status` reads.
    pub fn status(&self) -> Result<Status> {
        status::read(&self.path())?.context("no status yet")
    }

    pub async fn status_becomes(&self, what: &str, is: impl Fn(&Status) -> bool) -> Result<()> {
        eventually(what, async || self.status().is_ok_and(|status| is(&status)))
            .await
            .with_context(|| format!("{:?}", self.status()))
    }

    pub async fn enrolment_becomes(&self, enrolment: Enrolment) -> Result<()> {
        let what = format!("the agent is {enrolment:?}");
        self.status_becomes(&what, |status| status.enrolment == enrolment)
            .await
    }

    pub async fn connected(&self) -> Result<()> {
        self.status_becomes("the agent is connected", |status| {
            status.connection.connected
        })
        .await
    }

    pub async fn disconnected(&self) -> Result<()> {
        self.status_becomes("the agent is not connected", |status| {
            !status.connection.connected
        })
        .await
    }

    /// Waits until the agent has no connection for a reason with these words.
    pub async fn fails_with(&self, words: &str) -> Result<()> {
        let says = |error: &String| error.contains(words);
        let what = format!("the agent fails with {words:?}");
        self.status_becomes(&what, |status| {
            status.connection.error.as_ref().is_some_and(says)
        })
        .await
    }
}

/// A running agent; dropping it asks it to stop.
#[derive(Debug)]
pub struct Running {
    pub recorder: Arc<Recorder>,
    stop: DropGuard,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Running {
    /// Asks it to stop, and waits until it has.
    pub async fn stop(self) -> Result<()> {
        self.stop.disarm().cancel();
        let ended = timeout(PATIENCE, self.task).await;
        Ok(ended.context("the agent did not stop")???)
    }

    /// Ends it as a crash does, and waits until its folder is free.
    pub async fn kill(self) -> Result<()> {
        self.task.abort();
        let ended = self.task.await;
        ensure!(
            ended.is_err_and(|error| error.is_cancelled()),
            "it had ended"
        );
        Ok(())
    }
}

/// Takes the network away, or gives it back.
pub fn away(proxy: &Proxy, away: bool) -> Result<()> {
    proxy.refuse(away)?;
    proxy.cut_all();
    Ok(())
}

/// The id of the only agent.
pub async fn agent_id(site: &Site) -> Result<String> {
    site.psql("SELECT id FROM agents").await
}

pub async fn approve(site: &Site, agent: &str) -> Result<()> {
    let sql = format!("SELECT approve_agent('{agent}', 'test')");
    site.psql(&sql).await.map(drop)
}

/// Fails unless every agent's books balance and no sample is stored twice.
pub async fn books_balance(site: &Site) -> Result<()> {
    let tables = Tables::of(&site.database_url()).await?;
    ensure!(tables.faults() == 0, "{tables:?}");
    Ok(())
}
