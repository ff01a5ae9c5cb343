//! The agent of this machine, as a child of `svc-ingest dev` that ends with it.
//!
//! It is the real binary, from beside our own: the service knows nothing of the
//! agent's code.

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

/// For its goodbye.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where the agent finds the service, and what is its own.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub folder: &'a Path,
    pub port: u16,
    pub certificate: &'a Path,
}

#[derive(Debug)]
pub(super) struct Agent(Child);

impl Surroundings<'_> {
    pub fn log_file(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// `None` where there is no such binary.
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

    /// The death signal follows the thread that spawns it: the main one, which lives as long as we do.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .arg("run")
            .env("SVC_AGENT_CONFIG", "/dev/null")
            .env(
                "SVC_AGENT_INGEST_ADDRESS",
                format!("localhost:{}", self.port),
            )
            .env("SVC_AGENT_CA_CERT_FILE", self.certificate)
            .env(
                "SVC_AGENT_ENROLMENT_TOKEN_FILE",
                self.folder.join("enrolment_token"),
            )
            .env("SVC_AGENT_DATA_DIR", self.folder.join("agent"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

impl Agent {
    /// Asks it to end, and waits for its goodbye.
    pub async fn stop(mut self) {
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::TERM); // It may have ended already.
        }
        drop(timeout(FAREWELL, self.0.wait()).await);
    }
}
