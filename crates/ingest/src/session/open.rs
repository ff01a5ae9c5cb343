//! Opening sessions, many in one statement, so that a reconnect storm costs a few dozen statements instead
//! of tens of thousands.
//!
//! The first request is served at once. Requests that arrive while a batch is being written wait for the
//! next batch; batches leave at most ten times a second.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use svc_store::{AgentId, CloseCause, Opened, SessionClose, SessionOpen, Store, StoreError};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Closer;
use crate::{error_chain::chain, periodic::sleep_until};

const BATCH: usize = 512;
const PAUSE: Duration = Duration::from_millis(100);
/// Requests that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("too many streams are being opened")]
    Overloaded,
    #[error("the database is away")]
    Unavailable,
    #[error("the database refused the batch")]
    Failed,
}

#[derive(Debug)]
struct Job {
    open: SessionOpen,
    reply: oneshot::Sender<Result<Opened, OpenError>>,
}

/// The handle through which streams request their session.
#[derive(Clone, Debug)]
pub struct Opener(mpsc::Sender<Job>);

/// The background part that opens sessions.
#[derive(Debug)]
pub struct OpenerPart {
    jobs: mpsc::Receiver<Job>,
    store: Store,
    instance: watch::Receiver<Uuid>,
    closer: Arc<Closer>,
    held_back: Vec<Job>,
}

impl Opener {
    pub fn new(
        store: Store,
        instance: watch::Receiver<Uuid>,
        closer: Arc<Closer>,
    ) -> (Self, OpenerPart) {
        let (sender, jobs) = mpsc::channel(QUEUE);
        (
            Self(sender),
            OpenerPart {
                jobs,
                store,
                instance,
                closer,
                held_back: Vec::new(),
            },
        )
    }

    pub async fn open(&self, open: SessionOpen) -> Result<Opened, OpenError> {
        let (reply, answer) = oneshot::channel();
        self.0
            .try_send(Job { open, reply })
            .map_err(|_| OpenError::Overloaded)?;
        answer.await.map_err(|_| OpenError::Unavailable)?
    }
}

impl OpenerPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = stop.run_until_cancelled(self.batch()).await {
            if batch.is_empty() {
                break; // All handles are gone.
            }
            let sent = Instant::now();
            self.pass(batch).await;
            if !sleep_until(sent + PAUSE, &stop).await {
                break;
            }
        }
        stop.cancelled().await;
        Ok(())
    }

    /// At least one job (none only after all handles are gone), and at most one for each agent: a second
    /// job of the same agent waits for the next batch.
    async fn batch(&mut self) -> Vec<Job> {
        let mut jobs = std::mem::take(&mut self.held_back);
        if jobs.is_empty() {
            self.jobs.recv_many(&mut jobs, BATCH).await;
        }
        while jobs.len() < BATCH {
            match self.jobs.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let mut agents: HashSet<AgentId> = HashSet::new();
        let (batch, again) = jobs
            .into_iter()
            .partition(|job| agents.insert(job.open.agent_id));
        self.held_back = again;
        batch
    }

    async fn pass(&mut self, batch: Vec<Job>) {
        let (opens, replies): (Vec<SessionOpen>, Vec<_>) =
            batch.into_iter().map(|job| (job.open, job.reply)).unzip();
        let instance = *self.instance.borrow();
        let outcome = self.store.sessions_open(instance, &opens).await;
        let agents = opens.iter().map(|open| open.agent_id);
        let mut replies: HashMap<AgentId, _> = agents.zip(replies).collect();
        match outcome {
            Ok(opened) => {
                for (agent, opened) in opened {
                    if let Some(reply) = replies.remove(&agent) {
                        self.answer(agent, opened, reply);
                    }
                }
            }
            Err(error) => {
                let failure = failure(&error);
                for reply in replies.into_values() {
                    drop(reply.send(Err(failure)));
                }
            }
        }
    }

    /// If the client has left meanwhile, the session that was opened for it is closed again.
    fn answer(
        &self,
        agent: AgentId,
        opened: Opened,
        reply: oneshot::Sender<Result<Opened, OpenError>>,
    ) {
        if let Err(Ok(Opened::Open { epoch, .. })) = reply.send(Ok(opened)) {
            self.closer.close(SessionClose {
                agent_id: agent,
                epoch,
                cause: CloseCause::Lost,
            });
        }
    }
}

/// Logs the reason once for the whole batch.
fn failure(error: &StoreError) -> OpenError {
    let reason = chain(error);
    if error.is_unavailable() {
        tracing::warn!(reason, "streams could not be opened");
        return OpenError::Unavailable;
    }
    tracing::error!(reason, "streams could not be opened");
    OpenError::Failed
}
