//! Closing streams, many in one statement. What could not be written is tried
//! again: nothing is forgotten while the database is away. Nor could an agent that
//! was cut off then come back, so it is given time to before it counts as lost.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use svc_store::{SessionClose, Store};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(1);

/// The streams that have ended and are not yet written. A stream must have been
/// opened to be in here, and while the database is away none is, so that there are
/// never more than an instance holds streams.
#[derive(Debug)]
pub struct Closer {
    waiting: Mutex<Vec<SessionClose>>,
    wake: Notify,
    /// What agents are given to come back after an outage.
    grace: Duration,
}

impl Closer {
    pub fn new(grace: Duration) -> Self {
        Self {
            waiting: Mutex::default(),
            wake: Notify::new(),
            grace,
        }
    }

    pub fn close(&self, close: SessionClose) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(close);
        self.wake.notify_one();
    }

    /// Writes until `stop`, and then what is left.
    pub async fn run(&self, store: &Store, stop: CancellationToken) {
        while stop
            .run_until_cancelled(self.wake.notified())
            .await
            .is_some()
        {
            let pause = if self.pass(store).await { PAUSE } else { RETRY };
            if stop
                .run_until_cancelled(tokio::time::sleep(pause))
                .await
                .is_none()
            {
                break;
            }
        }
        self.pass(store).await;
    }

    /// Whether everything could be written.
    async fn pass(&self, store: &Store) -> bool {
        loop {
            let batch = self.take();
            if batch.is_empty() {
                return true;
            }
            if let Err(error) = store.sessions_close(&batch).await {
                tracing::warn!(%error, streams = batch.len(), "ended streams could not be written: trying again");
                self.put_back(batch);
                return false;
            }
        }
    }

    fn take(&self) -> Vec<SessionClose> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn put_back(&self, batch: Vec<SessionClose>) {
        let belated = batch.into_iter().map(|close| SessionClose {
            cause: close.cause.belated(self.grace),
            ..close
        });
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.splice(..0, belated);
        self.wake.notify_one();
    }
}
