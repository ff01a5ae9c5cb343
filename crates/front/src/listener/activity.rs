//! Activity of one connection: how many requests are in progress, and whether the client reads its responses.
//!
//! Three places share an [`Activity`]: the handlers of requests (each holds a [`Request`]), the response
//! bodies (`TrackedBody`), and the connection's own task, which waits in [`Activity::idle`] and
//! [`Activity::stalled`].
//!
//! **Idle.** `idle` returns when no request has been in progress for a time. While one is, it waits for a
//! notification and holds no timer, so that a long-lived stream costs none.
//!
//! **Stalled.** hyper polls a response body for its next frame only when HTTP/2 has accepted the previous
//! one, which means that the client's flow-control window had room for it. A body that has handed out a data
//! frame and has not been polled since is therefore waiting for its client. `stalled` returns once any body
//! has waited for the whole limit, whatever the connection's other bodies do: a client that reads its health
//! checks and leaves its heartbeat stream unread would otherwise never learn of a revocation. In the usual
//! case the next poll comes at once and no timer is ever started: `stalled` sleeps on `handed_out`, and by the
//! time it runs, `waiting` is empty again. A frame that HTTP/2 has no room for does not wake the connection's task
//! otherwise.
//!
//! The counters are atomics and `waiting` has a lock because hyper may run bodies on another thread than the
//! connection's task. `Notify` stores one permit, so a notification between a check and the wait is not lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use svc_common::sync::lock;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests since the connection began.
    begun: AtomicUsize,
    /// Requests in progress.
    running: AtomicUsize,
    /// Notified when `running` leaves or reaches 0.
    changed: Notify,
    /// Response bodies that have handed out a frame and have not been polled since: the number of the request
    /// and since when, the longest wait first. Bounded by the streams of a connection.
    waiting: Mutex<Vec<(usize, Instant)>>,
    /// Notified when a body hands out a frame.
    handed_out: Notify,
}

impl Activity {
    pub(super) fn begin(activity: Arc<Self>) -> Request {
        let number = activity.begun.fetch_add(1, Ordering::Relaxed);
        if activity.running.fetch_add(1, Ordering::AcqRel) == 0 {
            activity.changed.notify_one();
        }
        Request {
            activity,
            number,
            waiting: false,
        }
    }

    /// Whether there was a request at all.
    pub(super) fn seen(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// How many requests are in progress.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    pub(super) fn none_running(&self) -> bool {
        self.running() == 0
    }

    /// Returns once no request has been in progress for `limit` (before the first request: for `first`).
    pub(super) async fn idle(&self, first: Duration, limit: Duration) {
        let mut patience = first;
        loop {
            if !self.none_running() {
                self.changed.notified().await;
            } else if timeout(patience, self.changed.notified()).await.is_err()
                && self.none_running()
            {
                return;
            }
            patience = limit;
        }
    }

    /// Returns once a response has waited for the client for `limit`.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            self.handed_out.notified().await;
            while let Some(since) = self.longest_wait() {
                if since.elapsed() >= limit {
                    return;
                }
                sleep_until(since + limit).await;
            }
        }
    }

    fn longest_wait(&self) -> Option<Instant> {
        lock(&self.waiting).first().map(|(_, since)| *since)
    }
}

/// A request in progress, until its response body has ended.
#[derive(Debug)]
pub(super) struct Request {
    activity: Arc<Activity>,
    number: usize,
    waiting: bool,
}

impl Request {
    pub(super) fn hand_out(&mut self) {
        if !self.waiting {
            self.waiting = true;
            lock(&self.activity.waiting).push((self.number, Instant::now()));
            self.activity.handed_out.notify_one();
        }
    }

    pub(super) fn accepted(&mut self) {
        if self.waiting {
            self.waiting = false;
            lock(&self.activity.waiting).retain(|(number, _)| *number != self.number);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.accepted();
        if self.activity.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.activity.changed.notify_one();
        }
    }
}
