//! A frozen server (SIGSTOP) with all its children, as on a machine that hangs.
//!
//! Invariant: a frozen process is continued when its `Frozen` is dropped, and also when this
//! process is killed: a stopped process does not even react to its death signal. So a shell gets
//! the number of each process *before* it is stopped, and continues all of them when its input
//! ends, for any reason.

use std::{
    fs::DirEntry,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::child;

const PAUSE: Duration = Duration::from_millis(1);
const STOP_PATIENCE: Duration = Duration::from_secs(5);
const THAW_AT_END_OF_INPUT: &str =
    r#"while read -r pid; do pids="$pids $pid"; done; kill -CONT $pids"#;

#[derive(Debug)]
pub(crate) struct Frozen {
    shell: Child,
}

impl Frozen {
    /// Stops the parent first, so that it forks no more children.
    pub fn freeze(parent: Pid) -> anyhow::Result<Frozen> {
        let mut frozen = Frozen {
            shell: child::spawn(thawing_shell())?,
        };
        frozen.stop(parent)?;
        for child in children_of(parent)? {
            frozen.stop(child)?;
        }
        Ok(frozen)
    }

    /// Waits until the process has stopped, because the signal takes effect with a delay. A child
    /// that ended meanwhile is no error.
    fn stop(&mut self, pid: Pid) -> anyhow::Result<()> {
        let input = self.shell.stdin.as_mut().context("the shell's input")?;
        writeln!(input, "{}", pid.as_raw_nonzero())?;
        match kill_process(pid, Signal::STOP) {
            Ok(()) => wait_until_stopped(pid),
            Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("SIGSTOP"),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn thawing_shell() -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(THAW_AT_END_OF_INPUT).process_group(0);
    shell.stdin(Stdio::piped()).stderr(Stdio::null());
    shell
}

fn wait_until_stopped(pid: Pid) -> anyhow::Result<()> {
    let deadline = Instant::now() + STOP_PATIENCE;
    while !is_stopped(pid) {
        ensure!(Instant::now() < deadline, "a process does not stop");
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether all its threads are stopped.
fn is_stopped(pid: Pid) -> bool {
    let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
    let threads = std::fs::read_dir(threads).into_iter().flatten().flatten();
    let mut states = threads.filter_map(|thread| Some(stat(&thread.path())?.0));
    states.all(|state| matches!(state.as_str(), "T" | "t" | "Z" | "X"))
}

/// The backends of PostgreSQL have sessions of their own, so a signal to a process group does not
/// reach them.
fn children_of(parent: Pid) -> anyhow::Result<Vec<Pid>> {
    let processes = std::fs::read_dir("/proc").context("freezing a server needs /proc")?;
    let child = |entry: DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        (stat(&entry.path())?.1 == parent.as_raw_nonzero().get()).then_some(pid)
    };
    Ok(processes.flatten().filter_map(child).collect())
}

/// The state and the parent of a process or thread: the first fields after its name, which is in
/// brackets and may contain brackets and spaces.
fn stat(process: &Path) -> Option<(String, i32)> {
    let text = std::fs::read_to_string(process.join("stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
