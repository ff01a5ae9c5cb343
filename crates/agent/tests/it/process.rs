//! The real binary as a child process, which dies with the thread of its test.

use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    harness::{Lines, eventually},
    played::Installed,
};

/// How a command ended, and all that it wrote.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running binary; killed when it is dropped.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

impl AgentProcess {
    /// Runs `svc-agent` with these arguments and the settings of an installation.
    pub fn start(installed: &Installed, arguments: &[&str]) -> Result<Self> {
        let addresses: Vec<String> = installed
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(env!("CARGO_BIN_EXE_svc-agent"))
            .args(arguments)
            .env_clear()
            .env("SVC_AGENT_INGEST_ADDRESS", addresses.join(","))
            .env("SVC_AGENT_CA_CERT_FILE", &installed.ca_cert_file)
            .env("SVC_AGENT_ENROLMENT_TOKEN", &installed.token)
            .env("SVC_AGENT_DATA_DIR", installed.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("setpriv and svc-agent")?;
        Ok(Self {
            stdout: Lines::of(child.stdout.take().context("its stdout")?),
            stderr: Lines::of(child.stderr.take().context("its stderr")?),
            child,
        })
    }

    /// Runs it to its end.
    pub async fn run(installed: &Installed, arguments: &[&str]) -> Result<Finished> {
        let mut process = Self::start(installed, arguments)?;
        let status = process.ended().await?;
        Ok(Finished {
            code: status.code(),
            stdout: process.stdout.text(),
            stderr: process.stderr.text(),
        })
    }

    /// SIGTERM, and fails unless it exits with code 0.
    pub async fn stop(&mut self) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.id())?).context("a process id")?;
        kill_process(id, Signal::TERM)?;
        let status = self.ended().await?;
        ensure!(status.success(), "{status}: {}", self.logs());
        Ok(())
    }

    /// Its process id: setpriv becomes the program that it starts.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn logs(&self) -> String {
        self.stderr.text()
    }

    async fn ended(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let mut status = None;
        eventually("the process ends", async || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        })
        .await
        .with_context(|| self.stderr.text())?;
        eventually("its output ends", async || {
            self.stdout.is_complete() && self.stderr.is_complete()
        })
        .await?;
        status.context("no status")
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
