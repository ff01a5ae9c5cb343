//! An agent as the tests play it: on a data folder and a machine of its own, in this
//! process, with shorter waits.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use svc_agent::{
    agent::{Agent, AgentError, Surroundings},
    caller::Facts,
    config::{Config, Flags},
    recorder::Recorder,
    status::{self, Status},
    timing::Timing,
};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    agents::machine,
    harness::{PATIENCE, Site, eventually},
};

/// Shorter waits, in the same proportions; the hour stays an hour.
pub fn quick() -> Timing {
    Timing {
        backoff_first: Duration::from_millis(100),
        backoff_most: Duration::from_secs(1),
        settled: Duration::from_secs(5),
        replaced: Duration::from_secs(2),
        status: Duration::from_millis(50),
        backfill: Duration::from_millis(100),
        ..Timing::default()
    }
}

/// Where an agent is installed.
#[derive(Debug)]
pub struct Installed {
    folder: TempDir,
    pub addresses: Vec<SocketAddr>,
    pub token: String,
    pub ca_cert_file: PathBuf,
    pub surroundings: Surroundings,
    pub settings: Vec<(&'static str, String)>,
}

impl Installed {
    /// On the machine of this number, with the certificate of the site's instances.
    pub fn new(site: &Site, number: u32, addresses: &[SocketAddr], token: &str) -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
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
        self.folder.path().join("agent")
    }

    /// A copy of the disk, on another machine.
    pub fn cloned(&self, site: &Site, number: u32) -> Result<Self> {
        let copy = Self::new(site, number, &self.addresses, &self.token)?;
        copy_folder(&self.path(), &copy.path())?;
        Ok(copy)
    }

    pub fn config(&self) -> Result<Config> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut values = vec![
            ("ingest_address", addresses.join(",")),
            ("ca_cert_file", self.ca_cert_file.display().to_string()),
            ("enrolment_token", self.token.clone()),
            ("data_dir", self.path().display().to_string()),
        ];
        values.extend(self.settings.clone());
        let flags = Flags {
            file: None,
            values: values.into_iter().collect(),
        };
        Ok(Config::read(&flags, &|_| None)?)
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

    /// What `svc-agent status` would read.
    pub fn status(&self) -> Result<Status> {
        status::read(&self.path())?.context("no status yet")
    }

    pub async fn status_becomes(&self, what: &str, is: impl Fn(&Status) -> bool) -> Result<()> {
        eventually(what, async || self.status().is_ok_and(|status| is(&status)))
            .await
            .with_context(|| format!("{:?}", self.status()))
    }

    pub async fn connected(&self) -> Result<()> {
        self.status_becomes("the agent is connected", |status| {
            status.connection.connected
        })
        .await
    }
}

/// A running agent; dropped, it is asked to stop.
#[derive(Debug)]
pub struct Running {
    pub recorder: Arc<Recorder>,
    stop: DropGuard,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Running {
    /// Asks it to stop, and waits for its goodbye.
    pub async fn stop(self) -> Result<()> {
        self.stop.disarm().cancel();
        let ended = timeout(PATIENCE, self.task).await;
        Ok(ended.context("the agent did not stop")???)
    }

    /// Ends it without a word, as a crash would, and waits until its folder is free.
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

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Waits until a query gives this.
pub async fn becomes(site: &Site, sql: &str, wanted: &str) -> Result<()> {
    let mut last = String::new();
    eventually(sql, async || {
        last = site.psql(sql).await.unwrap_or_default();
        last == wanted
    })
    .await
    .with_context(|| format!("{last:?}, not {wanted:?}"))
}

/// The only agent's id.
pub async fn agent_id(site: &Site) -> Result<String> {
    site.psql("SELECT id FROM agents").await
}

pub async fn approve(site: &Site, agent: &str) -> Result<()> {
    let sql = format!("SELECT approve_agent('{agent}', 'test')");
    site.psql(&sql).await.map(drop)
}

/// Every number is accounted for, and none is stored twice.
pub async fn books_balance(site: &Site) -> Result<()> {
    let sql = "SELECT s.acked_seq = s.stored_count + s.rejected_count + s.gap_count,
                      s.stored_count = count(m.seq), count(m.seq) = count(DISTINCT m.seq)
                 FROM agent_state s LEFT JOIN host_metrics m USING (agent_id) GROUP BY s.agent_id";
    let books = site.psql(sql).await?;
    ensure!(books.lines().all(|line| line == "t|t|t"), "{books}");
    Ok(())
}
