//! This machine's agent, as a child process of `svc-ingest dev`.
//!
//! It is the `svc-agent` binary in our own binary's folder: the service does not link the agent's code.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// How long the agent may take to say goodbye to the service and exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The service's address and the folder for the agent's files.
#[derive(Debug)]
pub(super) struct AgentSettings<'a> {
    pub folder: &'a Path,
    pub port: u16,
    pub certificate: &'a Path,
}

#[derive(Debug)]
pub(super) struct Agent(Child);

impl AgentSettings<'_> {
    pub fn log_file(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// `None` where the binary is missing.
    pub fn start(&self) -> anyhow::Result<Option<Agent>> {
        let program = std::env::current_exe()?.with_file_name("svc-agent");
        if !program.is_file() {
            return Ok(None);
        }
        let log = self.log().context("the agent's log")?;
        let child = self.command(&program).stderr(log).spawn();
        let child = child.with_context(|| program.display().to_string())?;
        Ok(Some(Agent(child)))
    }

    fn log(&self) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
    }

    /// The kernel sends the death signal when the *thread* that spawned the child ends. `dev` spawns it on the main
    /// thread, which lives as long as the process.
    fn command(&self, program: &Path) -> Command {
        let address = format!("localhost:{}", self.port);
        let token_file = self.folder.join("enrolment_token");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .arg("run")
            .env("SVC_AGENT_CONFIG", "/dev/null")
            .env("SVC_AGENT_INGEST_ADDRESS", address)
            .env("SVC_AGENT_CA_CERT_FILE", self.certificate)
            .env("SVC_AGENT_ENROLMENT_TOKEN_FILE", token_file)
            .env("SVC_AGENT_DATA_DIR", self.folder.join("agent"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

impl Agent {
    /// Sends SIGTERM, and waits until the agent has ended.
    pub async fn stop(mut self) {
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::TERM); // It may have ended already.
        }
        drop(timeout(STOP_TIMEOUT, self.0.wait()).await);
    }
}
