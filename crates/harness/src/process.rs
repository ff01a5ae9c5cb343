//! Binaries of the workspace as child processes, with their output.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal};
use svc_sandbox::dying_with_us;

use crate::eventually;

/// A binary, its arguments and its whole environment.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
}

impl Program {
    /// Finds a binary of the workspace: the variable `<NAME>_BIN` names it, or it is in the folder
    /// of this program or the folder above. (Cargo puts test programs in `target/<profile>/deps`.)
    pub fn named(name: &str) -> anyhow::Result<Self> {
        let variable = format!("{}_BIN", name.to_uppercase().replace('-', "_"));
        let path = match env::var_os(&variable) {
            Some(path) => PathBuf::from(path),
            None => {
                let own = env::current_exe()?;
                let folders = own.ancestors().skip(1).take(2);
                let mut paths = folders.map(|folder| folder.join(name));
                paths.find(|path| path.is_file()).with_context(|| {
                    format!(
                        "{name} is not beside {}: build it (cargo build --bin {name}) or set {variable}",
                        own.display()
                    )
                })?
            }
        };
        Ok(Self::at(path))
    }

    /// The binary at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, impl Into<OsString>)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.environment
            .extend(variables.map(|(name, value)| (name.into(), value.into())));
        self
    }

    pub fn start(&self) -> anyhow::Result<Process> {
        let mut command = dying_with_us(&self.path);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&self.environment)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = svc_sandbox::Process::spawn(command)?;
        let (stdout, stderr) = child.take_output();
        Ok(Process {
            child,
            stdout: Lines::of(stdout.context("no standard output")?),
            stderr: Lines::of(stderr.context("no standard error")?),
        })
    }

    /// Runs it to its end.
    pub async fn run(&self) -> anyhow::Result<Finished> {
        self.start()?.finished().await
    }
}

/// How a program ended, and everything it wrote.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running program; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: svc_sandbox::Process,
    stdout: Lines,
    stderr: Lines,
}

impl Process {
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Everything on standard error so far.
    pub fn logs(&self) -> String {
        self.stderr.text()
    }

    /// Everything on standard output so far.
    pub fn output(&self) -> String {
        self.stdout.text()
    }

    /// Waits until it has logged `text`.
    pub async fn logs_contain(&self, text: &str) -> anyhow::Result<()> {
        eventually(text, async || self.logs().contains(text))
            .await
            .with_context(|| self.logs())
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(self.child.signal(signal)?)
    }

    pub fn has_ended(&self) -> bool {
        self.child.ended().is_some()
    }

    /// Waits for its end, and for the last line it wrote.
    pub async fn ended(&self) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        eventually("the process ends and its output is complete", async || {
            status = self.child.ended();
            status.is_some() && self.stdout.is_complete() && self.stderr.is_complete()
        })
        .await
        .with_context(|| self.logs())?;
        status.context("no status")
    }

    pub async fn finished(&self) -> anyhow::Result<Finished> {
        let status = self.ended().await?;
        Ok(Finished {
            code: status.code(),
            stdout: self.output(),
            stderr: self.logs(),
        })
    }

    /// Sends SIGTERM; fails unless it exits with code 0.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended().await?;
        ensure!(status.success(), "{status}: {}", self.logs());
        Ok(())
    }

    /// Sends SIGKILL and waits for its end.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.ended().await.map(drop)
    }
}

/// What a process writes, gathered by a thread until the pipe closes.
#[derive(Debug)]
struct Lines(Arc<Mutex<String>>);

impl Lines {
    fn of(source: impl Read + Send + 'static) -> Self {
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

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }

    /// Whether the thread has ended: it drops its handle when it does.
    fn is_complete(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
