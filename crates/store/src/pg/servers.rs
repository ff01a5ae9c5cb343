//! Which server the pools are connected to, and when to leave it.
//!
//! After a failover the address belongs to another server, but open connections stay with the old
//! one, which may go on answering reads for days. Every connection that was opened before the
//! failover must therefore go, including those that only read: what they see is out of date. A
//! failover is noticed in three ways:
//!
//! - A write is refused because the server is read-only (SQLSTATE 25006).
//! - A new connection reaches a server that has not been seen before.
//! - The server does not even answer a cancel request, or a new connection while a COMMIT waits.
//!
//! `discard` then moves the time before which connections are stale. The pools check it whenever
//! they hand a connection out, so a stale one is never used again.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::Instant,
};

/// Servers that are remembered. Several may answer in turn where a load balancer is in between;
/// only a new one means a failover.
const REMEMBERED: usize = 8;

/// Each connection of the pools may notice the same failover; one line is enough.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Servers {
    /// When each of these server processes started, which identifies it.
    seen: Mutex<VecDeque<String>>,
    stale_before: watch::Sender<Instant>,
    /// Held while a task looks whether the server answers.
    looking: Semaphore,
}

impl Servers {
    pub(crate) fn new() -> Servers {
        Servers {
            seen: Mutex::default(),
            stale_before: watch::Sender::new(Instant::now()),
            looking: Semaphore::new(1),
        }
    }

    /// A connection that began at `began` has reached `server`.
    pub(crate) fn reached(&self, server: String, began: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&server) {
            return;
        }
        let first = seen.is_empty();
        seen.push_back(server);
        if seen.len() > REMEMBERED {
            seen.pop_front();
        }
        drop(seen);
        if !first {
            self.discard_older("another server answers", began);
        }
    }

    /// Makes every open connection stale.
    pub(crate) fn discard(&self, reason: &'static str) {
        self.discard_older(reason, Instant::now());
    }

    pub(crate) fn is_stale(&self, opened: Instant) -> bool {
        opened < *self.stale_before.borrow()
    }

    /// The turn to look whether the server answers, unless another task has it.
    pub(crate) fn look(&self) -> Option<SemaphorePermit<'_>> {
        self.looking.try_acquire().ok()
    }

    /// Announces each `discard`.
    pub(crate) fn discards(&self) -> watch::Receiver<Instant> {
        self.stale_before.subscribe()
    }

    fn discard_older(&self, reason: &'static str, than: Instant) {
        let before = *self.stale_before.borrow();
        if than.saturating_duration_since(before) > QUIET {
            tracing::warn!(reason, "discarding the connections to the database");
        }
        self.stale_before.send_if_modified(|stale_before| {
            let later = than > *stale_before;
            *stale_before = than.max(*stale_before);
            later
        });
    }
}
