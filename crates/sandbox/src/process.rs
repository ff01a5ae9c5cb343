//! A child process with a safe handle.
//!
//! Invariant: no signal reaches a process that is not our child. The kernel reuses the number of a
//! process once its parent has waited for it, so the handle signals only under the lock that also
//! guards waiting, and only a child that nobody has waited for. The handle belongs to no runtime:
//! tests that each have their own runtime share servers.

use std::{
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::child;

const PAUSE: Duration = Duration::from_millis(10);
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// A running child; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    pid: Pid,
}

impl Process {
    /// Spawns a command made by [`dying_with_us`](crate::dying_with_us).
    pub fn spawn(command: Command) -> anyhow::Result<Process> {
        let child = child::spawn(command)?;
        let pid = Pid::from_child(&child);
        Ok(Process {
            child: Mutex::new(child),
            pid,
        })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Its standard output and standard error, where they are pipes that nobody has taken.
    pub fn take_output(&self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let mut child = self.child();
        (child.stdout.take(), child.stderr.take())
    }

    /// Signals it; does nothing once it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let mut child = self.child();
        match child.try_wait() {
            Ok(None) => kill_process(self.pid, signal),
            _ => Ok(()),
        }
    }

    /// Signals it and blocks until it has ended, with SIGKILL after `patience`.
    pub fn stop(&self, signal: Signal, patience: Duration) {
        let _ = self.signal(signal);
        if !self.ends_within(patience) {
            let pid = self.pid.as_raw_nonzero();
            tracing::warn!(pid, "process did not stop, killing it");
            let _ = self.signal(Signal::KILL);
            self.ends_within(patience);
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

    /// A panic in another thread leaves the child handle valid, so a poisoned lock is no obstacle.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.stop(Signal::KILL, KILL_PATIENCE);
        }
    }
}
