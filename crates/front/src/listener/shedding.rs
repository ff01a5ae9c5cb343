//! Shedding: when the process has no file descriptors left, waiting connections are closed at once instead of
//! left to time out.
//!
//! Accepting a connection takes a file descriptor, even if only to close it. One descriptor is kept in reserve
//! and released while connections are shed.

use std::{fs::File, io};

use futures_util::FutureExt;
use rustix::io::Errno;
use svc_common::log_limit::LogLimit;
use tokio::net::TcpListener;

/// How many connections are closed before the accept loop sleeps again.
const AT_ONCE: u64 = 100;

static NOT_ACCEPTED: LogLimit = LogLimit::new();

#[derive(Debug)]
pub struct Shedding {
    reserve: Option<File>,
}

impl Shedding {
    pub fn new() -> Self {
        Self { reserve: reserve() }
    }

    /// Logs `error`, and closes the connections that wait to be accepted if it says that no file descriptor is left.
    /// Returns how many.
    pub fn close_waiting(&mut self, socket: &TcpListener, error: &io::Error) -> u64 {
        NOT_ACCEPTED.line(|suppressed| {
            tracing::warn!(%error, suppressed, "could not accept connections");
        });
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

impl Default for Shedding {
    fn default() -> Self {
        Self::new()
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn out_of_files(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno == Some(Errno::MFILE) || errno == Some(Errno::NFILE)
}
