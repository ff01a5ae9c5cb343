//! Closing sessions, many in one statement. A close that cannot be written is retried: nothing is
//! forgotten while the database is away.
//!
//! While the database is away, an agent whose stream broke cannot open another one either. A close that
//! had to be retried therefore gives its agent a grace to come back before it counts as offline.

use std::{sync::Mutex, time::Duration};

use svc_store::{AgentId, CloseCause, SessionClose, Store};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{periodic::sleep, sync::lock};

const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(1);

/// Sessions that have ended and are not yet closed in the database. Bounded by the number of streams: a
/// session must have been opened to be in here, and none is opened while the database is away.
#[derive(Debug)]
pub struct Closer {
    waiting: Mutex<Vec<SessionClose>>,
    wake: Notify,
    /// How long agents may take to come back after an outage.
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
        lock(&self.waiting).push(close);
        self.wake.notify_one();
    }

    /// Closes a session that was opened after its client had left. The database or this instance was slow, not the agent, and the
    /// agent tries again soon: it gets a grace before it counts as offline.
    pub fn close_abandoned(&self, agent_id: AgentId, epoch: i64) {
        self.close(SessionClose {
            agent_id,
            epoch,
            cause: CloseCause::Lost.with_grace(self.grace),
        });
    }

    /// Writes until `stop`, and then once more what is left.
    pub async fn run(&self, store: &Store, stop: CancellationToken) {
        while stop
            .run_until_cancelled(self.wake.notified())
            .await
            .is_some()
        {
            let pause = if self.pass(store).await { PAUSE } else { RETRY };
            if !sleep(pause, &stop).await {
                break;
            }
        }
        self.pass(store).await;
    }

    /// Returns whether everything could be written.
    async fn pass(&self, store: &Store) -> bool {
        loop {
            let batch = self.take();
            if batch.is_empty() {
                return true;
            }
            let failed = write(store, batch).await;
            if !failed.is_empty() {
                self.put_back(failed);
                return false;
            }
        }
    }

    fn take(&self) -> Vec<SessionClose> {
        let mut waiting = lock(&self.waiting);
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn put_back(&self, batch: Vec<SessionClose>) {
        let belated = batch.into_iter().map(|close| SessionClose {
            cause: close.cause.with_grace(self.grace),
            ..close
        });
        lock(&self.waiting).splice(..0, belated);
        self.wake.notify_one();
    }
}

/// Writes a batch and returns what could not be written. If the server refuses the batch, because of a lock
/// or an error, its closes are written one by one, so that only the one at fault waits.
async fn write(store: &Store, batch: Vec<SessionClose>) -> Vec<SessionClose> {
    let Err(error) = store.sessions_close(&batch).await else {
        return Vec::new();
    };
    tracing::warn!(%error, streams = batch.len(), "ended streams could not be written: retrying");
    if error.sqlstate().is_none() || batch.len() == 1 {
        return batch;
    }
    let mut failed = Vec::new();
    for close in batch {
        if store.sessions_close(&[close]).await.is_err() {
            failed.push(close);
        }
    }
    failed
}
