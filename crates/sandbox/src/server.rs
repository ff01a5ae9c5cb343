//! A server process with its log file: starting, readiness, stopping and freezing.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::{freeze::Frozen, process::Process};

const PAUSE: Duration = Duration::from_millis(10);
const START_PATIENCE: Duration = Duration::from_secs(30);
/// For one readiness check: another program on the port may accept and send nothing.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);
const TAIL_LINES: usize = 20;

/// A running server and its log since it started.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    log: Log,
    frozen: Mutex<Option<Frozen>>,
}

impl Server {
    pub fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Server> {
        let (log, file) = Log::open(log)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Server {
            process: Process::spawn(command)?,
            log,
            frozen: Mutex::default(),
        })
    }

    pub fn ended(&self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Everything it has logged since it started.
    pub fn logged(&self) -> String {
        self.log.text()
    }

    /// Waits until `is_up`. The error has the end of its log, if it ends first or takes too long.
    pub async fn wait_until<F>(&self, is_up: impl Fn() -> F) -> anyhow::Result<()>
    where
        F: Future<Output = bool>,
    {
        let deadline = Instant::now() + START_PATIENCE;
        while !timeout(CHECK_PATIENCE, is_up()).await.unwrap_or(false) {
            let tail = || self.log.tail();
            if let Some(status) = self.ended() {
                bail!("the server ended ({status}); its log:\n{}", tail());
            }
            if Instant::now() > deadline {
                bail!(
                    "the server is not up after {START_PATIENCE:?}; its log:\n{}",
                    tail()
                );
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Signals it and blocks until it has ended, with SIGKILL after `patience`. A stopped process
    /// handles no signal, so it is thawed first.
    pub fn stop(&self, signal: Signal, patience: Duration) {
        self.thaw();
        self.process.stop(signal, patience);
    }

    /// Stops it and its children (SIGSTOP) until `thaw`, or until this process ends.
    pub fn freeze(&self) -> anyhow::Result<()> {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if frozen.is_none() {
            *frozen = Some(Frozen::freeze(self.process.pid())?);
        }
        Ok(())
    }

    pub fn thaw(&self) {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        drop(frozen.take());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thaw();
    }
}

/// A log file, read from the position where it ended when the server started.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    start: u64,
}

impl Log {
    fn open(path: &Path) -> anyhow::Result<(Log, File)> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.with_context(|| path.display().to_string())?;
        let start = file.metadata()?.len();
        let path = path.to_owned();
        Ok((Log { path, start }, file))
    }

    fn text(&self) -> String {
        let mut bytes = Vec::new();
        let _ = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.start))?;
            file.read_to_end(&mut bytes)
        });
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}
