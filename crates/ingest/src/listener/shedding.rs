//! What remains to be done for clients when no file is left to serve them with:
//! to close their connections at once, rather than let them wait for nothing.
//!
//! It takes a file to accept a connection, even one that is to be closed. So one
//! is kept in reserve, and given up for as long as newcomers are turned away.

use std::{
    fs::File,
    io,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use rustix::io::Errno;
use tokio::net::TcpListener;

/// How many newcomers are turned away before the loop sleeps again.
const AT_ONCE: u64 = 100;
/// How often the log repeats that connections cannot be accepted.
const REPEAT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Shedding {
    reserve: Option<File>,
    reported: Option<Instant>,
}

impl Shedding {
    pub(crate) fn new() -> Self {
        Self {
            reserve: reserve(),
            reported: None,
        }
    }

    pub(crate) fn report(&mut self, error: &io::Error) {
        if self.reported.is_none_or(|last| last.elapsed() > REPEAT) {
            self.reported = Some(Instant::now());
            tracing::warn!(%error, "could not accept connections");
        }
    }

    /// Closes the connections that wait to be accepted, if `error` says that no
    /// file is left for them; returns how many.
    pub(crate) fn turn_away(&mut self, socket: &TcpListener, error: &io::Error) -> u64 {
        if !out_of_files(error) {
            return 0;
        }
        self.reserve = None;
        let mut shed = 0;
        while shed < AT_ONCE && matches!(socket.accept().now_or_never(), Some(Ok(_))) {
            shed += 1;
        }
        self.reserve = reserve();
        shed
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn out_of_files(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno == Some(Errno::MFILE) || errno == Some(Errno::NFILE)
}
