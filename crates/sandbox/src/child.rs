//! Child processes that end with this process.
//!
//! Invariant: a child dies when this process does, even by SIGKILL. `setpriv --pdeathsig` asks the
//! kernel for that. The kernel sends the signal when the *thread* that spawned the child ends, and
//! the threads of tests and runtimes end early. So one thread, which lives as long as the process,
//! spawns all children.

use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{LazyLock, mpsc},
    thread,
};

use anyhow::Context;

use crate::programs::{self, User};

/// A command that gets `death_signal` when this process ends, run as `user` if there is one.
///
/// It has a process group of its own, so that an interrupt from the terminal reaches only us.
pub(crate) fn command(program: &Path, user: Option<User>, death_signal: &str) -> Command {
    let mut command = match programs::setpriv() {
        Some(setpriv) => under_setpriv(&setpriv, program, user, death_signal),
        None => Command::new(program),
    };
    command.process_group(0).stdin(Stdio::null());
    command
}

/// A command that is killed when this process ends, if [`spawn`] or [`Process`](crate::Process)
/// spawns it.
pub fn dying_with_us(program: &Path) -> Command {
    command(program, None, "KILL")
}

fn under_setpriv(setpriv: &Path, program: &Path, user: Option<User>, signal: &str) -> Command {
    let mut command = Command::new(setpriv);
    command.arg("--pdeathsig").arg(signal);
    if let Some(User { uid, gid }) = user {
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command.arg("--").arg(program);
    command
}

type SpawnRequest = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Spawns on the long-lived thread. The channel holds one request; further callers wait.
pub fn spawn(command: Command) -> anyhow::Result<Child> {
    static KEEPER: LazyLock<mpsc::SyncSender<SpawnRequest>> = LazyLock::new(|| {
        let (requests, inbox) = mpsc::sync_channel::<SpawnRequest>(1);
        thread::spawn(move || keep(&inbox));
        requests
    });
    let program = format!("{command:?}");
    let (reply, answer) = mpsc::sync_channel(1);
    KEEPER
        .send((command, reply))
        .context("the keeper thread ended")?;
    answer
        .recv()
        .context("the keeper thread ended")?
        .context(program)
}

fn keep(inbox: &mpsc::Receiver<SpawnRequest>) {
    for (mut command, reply) in inbox {
        let _ = reply.send(command.spawn());
    }
}
