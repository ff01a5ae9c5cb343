//! The real binary as a child process, which dies with the thread of its test.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use svc_sandbox::free_port;

use super::{Environment, eventually, get};

/// Only the service's own tests have its binary.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_svc-ingest");

#[derive(Debug)]
pub struct ProcessBuilder {
    environment: Environment,
    arguments: Vec<String>,
}

impl ProcessBuilder {
    pub(super) fn new(environment: Environment) -> Self {
        Self {
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

    /// A command and its flags; without any, it serves.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts it without waiting. Ports that were not set are free ones.
    pub fn launch(mut self) -> anyhow::Result<Process> {
        for name in ["INGEST_GRPC_PORT", "INGEST_HTTP_PORT"] {
            if self.environment.get(name).is_none() {
                self.environment = self.environment.set(name, own_port()?.to_string());
            }
        }
        let mut child = self.command().spawn().context("setpriv and svc-ingest")?;
        Ok(Process {
            grpc: self.address("INGEST_GRPC_PORT"),
            http: self.address("INGEST_HTTP_PORT"),
            stdout: Lines::of(child.stdout.take().context("its stdout")?),
            stderr: Lines::of(child.stderr.take().context("its stderr")?),
            child,
        })
    }

    /// Starts it and waits until it serves.
    pub async fn start(self) -> anyhow::Result<Process> {
        let mut process = self.launch()?;
        process.serving().await?;
        Ok(process)
    }

    /// Runs it to its end.
    pub async fn run(self) -> anyhow::Result<Finished> {
        let mut process = self.launch()?;
        let status = process.ended().await?;
        Ok(Finished {
            code: status.code(),
            stdout: process.stdout.text(),
            stderr: process.stderr.text(),
        })
    }

    /// The death signal follows the thread that spawned the child: the test's.
    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(PROGRAM.expect("cargo builds the binary for these tests"))
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Port 0, where nobody listens, if the variable holds no port.
    fn address(&self, variable: &str) -> SocketAddr {
        let text = self.environment.get(variable).unwrap_or_default();
        let port = text.to_str().and_then(|text| text.parse().ok());
        (Ipv4Addr::LOCALHOST, port.unwrap_or_default()).into()
    }
}

/// How a process ended, and all that it wrote.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running binary; killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

impl Process {
    /// Waits until `/healthz` answers 200; fails at once if the process has ended.
    pub async fn serving(&mut self) -> anyhow::Result<()> {
        let (http, child) = (self.http, &mut self.child);
        let mut ended = false;
        eventually("the process serves", async || {
            ended = child.try_wait().is_ok_and(|status| status.is_some());
            ended
                || get(http, "/healthz")
                    .await
                    .is_ok_and(|answer| answer.status == 200)
        })
        .await
        .with_context(|| self.stderr.text())?;
        if ended {
            self.ended().await?;
            bail!("the process ended: {}", self.logs());
        }
        Ok(())
    }

    /// Waits until it has logged `text`.
    pub async fn says(&self, text: &str) -> anyhow::Result<()> {
        eventually(text, async || self.stderr.text().contains(text))
            .await
            .with_context(|| self.logs())
    }

    /// Everything on standard error so far.
    pub fn logs(&self) -> String {
        self.stderr.text()
    }

    /// Everything on standard output so far.
    pub fn output(&self) -> String {
        self.stdout.text()
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    pub fn pid(&self) -> anyhow::Result<Pid> {
        let raw = i32::try_from(self.child.id())?;
        Pid::from_raw(raw).context("a process id is never 0")
    }

    /// Waits for its end, and for the last line it wrote.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
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

    /// SIGTERM, and fails unless it exits with code 0.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended().await?;
        anyhow::ensure!(status.success(), "{status}: {}", self.logs());
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process writes, gathered by a thread until its end.
#[derive(Debug)]
pub struct Lines(Arc<Mutex<String>>);

impl Lines {
    pub fn of(source: impl Read + Send + 'static) -> Self {
        let lines = Self(Arc::default());
        let gathered = lines.0.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                let mut lines = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_str(&String::from_utf8_lossy(&line));
                lines.push('\n');
            }
        });
        lines
    }

    pub fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }

    /// Whether the thread has come to the end.
    pub fn is_complete(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A free port that no other test of this process was given.
pub fn own_port() -> anyhow::Result<u16> {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    loop {
        let port = free_port()?;
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(port) {
            return Ok(port);
        }
    }
}
