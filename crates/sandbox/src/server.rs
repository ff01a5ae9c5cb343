//! A running server: its process, its log, and how it ends.
//!
//! Invariant: no signal goes to a process that is not our child, and nothing here belongs to a
//! runtime: a server is shared by tests that each have their own.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use crate::child;
use crate::freeze::Frozen;

const PAUSE: Duration = Duration::from_millis(10);
const START_PATIENCE: Duration = Duration::from_secs(30);
/// For one look whether it is up: a stranger on its port may accept and say nothing.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);
const TAIL_LINES: usize = 20;

/// A running server and what it said since it started.
#[derive(Debug)]
pub(crate) struct Server {
    child: Mutex<Child>,
    pid: Pid,
    log: Log,
    frozen: Mutex<Option<Frozen>>,
}

impl Server {
    pub fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Server> {
        let (log, file) = Log::open(log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = child::spawn(command)?;
        let pid = Pid::from_child(&child);
        Ok(Server {
            child: Mutex::new(child),
            pid,
            log,
            frozen: Mutex::default(),
        })
    }

    pub fn ended(&self) -> Option<ExitStatus> {
        held(&self.child).try_wait().ok().flatten()
    }

    /// What it has said since it started.
    pub fn said(&self) -> String {
        self.log.text()
    }

    /// Waits until `is_up`; its log's tail is the error when it ends before, or takes too long.
    pub async fn wait_until<F>(&self, is_up: impl Fn() -> F) -> anyhow::Result<()>
    where
        F: Future<Output = bool>,
    {
        let deadline = Instant::now() + START_PATIENCE;
        while !timeout(CHECK_PATIENCE, is_up()).await.unwrap_or(false) {
            if let Some(status) = self.ended() {
                bail!("the server ended ({status}); its log:\n{}", self.log.tail());
            }
            if Instant::now() > deadline {
                bail!(
                    "the server is not up after {START_PATIENCE:?}; its log:\n{}",
                    self.log.tail()
                );
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Signals it and waits, blocking, until it is gone; SIGKILL when it is not within `patience`.
    pub fn stop(&self, signal: Signal, patience: Duration) {
        self.thaw();
        self.signal(signal);
        if !self.ends_within(patience) {
            tracing::warn!(
                pid = self.pid.as_raw_nonzero(),
                "server did not stop, killing it"
            );
            self.signal(Signal::KILL);
            self.ends_within(patience);
        }
    }

    /// Stops it and its children in their tracks until `thaw`, or until we are gone.
    pub fn freeze(&self) -> anyhow::Result<()> {
        let mut frozen = held(&self.frozen);
        if frozen.is_none() {
            *frozen = Some(Frozen::freeze(self.pid)?);
        }
        Ok(())
    }

    pub fn thaw(&self) {
        drop(held(&self.frozen).take());
    }

    /// Only a child that was not yet waited for is signalled: its number may be another's
    /// afterwards.
    fn signal(&self, signal: Signal) {
        let mut child = held(&self.child);
        if let Ok(None) = child.try_wait() {
            let _ = kill_process(self.pid, signal);
        }
    }

    fn ends_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.ended().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.stop(Signal::KILL, Duration::from_secs(5));
        }
    }
}

/// A server's log file, from where it stood when the server started.
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
        Ok((
            Log {
                path: path.to_owned(),
                start,
            },
            file,
        ))
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

/// A panic elsewhere does not make a process handle less true.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
