//! What goes on in a connection: how many requests are under way, and whether
//! the client takes what it is given.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tonic::{Status, body::Body};

#[derive(Debug, Default)]
pub(super) struct Activity {
    begun: AtomicUsize,
    running: AtomicUsize,
    /// Signals that `running` became some or none.
    changed: Notify,
    /// Answers that have handed something out and were not asked for more yet.
    waiting: AtomicUsize,
    /// How often something that was handed out has been taken.
    taken: AtomicUsize,
    handed_out: Notify,
}

impl Activity {
    pub(super) fn begin(activity: Arc<Self>) -> Running {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        if activity.running.fetch_add(1, Ordering::AcqRel) == 0 {
            activity.changed.notify_one();
        }
        Running {
            activity,
            waiting: false,
        }
    }

    pub(super) fn seen(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    pub(super) fn none_running(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
    }

    /// Returns once no request has been under way for `limit` (for `first`,
    /// before the first one). It sleeps without a timer while one is.
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

    /// Returns once something has waited for the client for `limit` and the
    /// client took nothing. A client that reads is asked for more before this
    /// looks, so that there is a timer only where something does wait.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            self.handed_out.notified().await;
            while self.waiting.load(Ordering::Acquire) > 0 {
                let taken = self.taken.load(Ordering::Acquire);
                sleep(limit).await;
                if self.waiting.load(Ordering::Acquire) > 0
                    && self.taken.load(Ordering::Acquire) == taken
                {
                    return;
                }
            }
        }
    }
}

/// A request under way, until its response body has ended.
#[derive(Debug)]
pub(super) struct Running {
    activity: Arc<Activity>,
    waiting: bool,
}

impl Running {
    fn hand_out(&mut self) {
        if !self.waiting {
            self.waiting = true;
            self.activity.waiting.fetch_add(1, Ordering::AcqRel);
            self.activity.handed_out.notify_one();
        }
    }

    fn take(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.activity.taken.fetch_add(1, Ordering::AcqRel);
            self.activity.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.take();
        if self.activity.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.activity.changed.notify_one();
        }
    }
}

/// A response body that is counted while it lasts. HTTP/2 asks it for more once
/// there is room for what it gave last.
#[derive(Debug)]
pub(super) struct Watched {
    pub body: Body,
    pub running: Running,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.running.take();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            self.running.hand_out();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
