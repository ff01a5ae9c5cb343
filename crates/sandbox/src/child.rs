//! Child processes that cannot outlive us.
//!
//! Invariant: a child dies when this process does, even by SIGKILL. `setpriv --pdeathsig` asks the
//! kernel for that, but the kernel sends the death signal when the *thread* that spawned the child
//! ends, and test threads and runtimes come and go. So one keeper thread, which lives as long as
//! the process, spawns them all.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;

use anyhow::Context;

use crate::programs::{self, User};

/// A command that dies with us by `death_signal`, run as `user` where one is given.
///
/// It gets a process group of its own: an interrupt typed at the terminal is for us to handle.
pub(crate) fn command(program: &Path, user: Option<User>, death_signal: &str) -> Command {
    let mut command = match programs::setpriv() {
        Some(setpriv) => under_setpriv(&setpriv, program, user, death_signal),
        None => Command::new(program),
    };
    command.process_group(0).stdin(Stdio::null());
    command
}

/// For programs beside our servers: a command that is killed when we end, if it is spawned by
/// [`spawn`].
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

/// Spawns on the keeper thread. The channel holds one request: spawners wait their turn.
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
