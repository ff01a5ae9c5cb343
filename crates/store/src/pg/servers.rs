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
//! **Two primaries.** Where nothing has stopped the old primary (its Patroni was killed, or it was cut off from the others
//! and not from this instance), it goes on accepting connections and even says that it is not read-only. PostgreSQL
//! begins a new timeline with every promotion, so of two servers of one cluster the one with the lower timeline
//! was replaced. It is never used again: not for new connections, and not for open ones. The timelines are remembered as
//! long as the process lives. If a cluster is restored in its place, without the later timelines, restart the instances.
//!
//! `discard` then moves the time before which connections are stale. The pools check it whenever
//! they hand a connection out, so a stale one is never used again.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
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

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// When the process started, which identifies it.
    pub(crate) started: String,
    /// `None` on a standby, and on a server that does not tell.
    pub(crate) history: Option<History>,
}

/// How often the cluster of a primary has failed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct History {
    /// The same on all servers of a cluster.
    pub(crate) cluster: String,
    pub(crate) timeline: u32,
}

#[derive(Debug, Default)]
struct Seen {
    servers: VecDeque<Identity>,
    newest: Option<History>,
}

#[derive(Debug)]
pub(crate) struct Servers {
    seen: Mutex<Seen>,
    stale_before: watch::Sender<Instant>,
    /// Held while a task looks whether the server answers.
    looking: Semaphore,
}

impl Seen {
    fn has_replaced(&self, server: &Identity) -> bool {
        match (&self.newest, &server.history) {
            (Some(newest), Some(this)) => {
                newest.cluster == this.cluster && this.timeline < newest.timeline
            }
            _ => false,
        }
    }
}

impl Servers {
    pub(crate) fn new() -> Servers {
        Servers {
            seen: Mutex::default(),
            stale_before: watch::Sender::new(Instant::now()),
            looking: Semaphore::new(1),
        }
    }

    /// A connection that began at `began` has reached `server`. Returns whether it may be used.
    pub(crate) fn reached(&self, server: &Identity, began: Instant) -> bool {
        let mut seen = self.seen();
        if seen.has_replaced(server) {
            return false;
        }
        if seen.servers.contains(server) {
            return true;
        }
        let first = seen.servers.is_empty();
        seen.servers.push_back(server.clone());
        if seen.servers.len() > REMEMBERED {
            seen.servers.pop_front();
        }
        if server.history.is_some() {
            seen.newest.clone_from(&server.history);
        }
        drop(seen);
        if !first {
            self.discard_older("another server answers", began);
        }
        true
    }

    /// Whether another server of the same cluster was promoted after this one.
    pub(crate) fn replaced(&self, server: &Identity) -> bool {
        self.seen().has_replaced(server)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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
