//! Opening sessions, many in one statement, so that a reconnect storm costs a few dozen statements instead
//! of tens of thousands.
//!
//! The first request is served at once. Requests that arrive while a batch is being written wait for the
//! next batch; batches leave at most ten times a second.
//!
//! **No request delays others.** A batch has one request for each agent, the newest; an older one that still
//! waits is answered as replaced. All requests of an agent come from the holder of its key, who takes one place,
//! however many there are. Requests whose client has left are dropped. A batch that fails is repeated request by request, so that only the
//! one at fault is refused.
//!
//! **Late requests are void.** A request carries the time until which it is valid, and the database checks
//! it. It ends before this instance gives up waiting, so a request that was given up is never executed
//! later, when the agent may live on another instance. A request is also void once a session was opened after
//! its Hello. A client that finds its own abandoned request opened meanwhile is refused, and succeeds when it
//! comes again.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use svc_store::{AgentId, Opened, SessionOpen, Store, StoreError};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Closer;
use crate::{error_chain::chain, log_limit::LogLimit, periodic::sleep_until};

/// How long a request is valid. Shorter than the store's deadline of a call.
pub const OPEN_VALIDITY: Duration = Duration::from_secs(7);
/// `sessions_open_heard` adds this to the time of a request before it compares it with the newest session. That is too
/// much: an agent that connects elsewhere within a second would be displaced by its own abandoned request. The error of
/// the clock is known here, so the request is predated by it and by what the function adds.
pub const OPEN_TOLERANCE: Duration = Duration::from_secs(1);
const BATCH: usize = 512;
const PAUSE: Duration = Duration::from_millis(100);
/// Requests that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;

static REPEATED: LogLimit = LogLimit::new();
static FAILED: LogLimit = LogLimit::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("too many streams are being opened")]
    Overloaded,
    #[error("the database is away")]
    Unavailable,
    #[error("a newer request of the same agent took over")]
    Replaced,
    #[error("the database refused the request")]
    Failed,
}

#[derive(Debug)]
struct Job {
    open: SessionOpen,
    /// When the request is given up.
    expires: Instant,
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
    /// How recent a message proves that an agent's stream is live.
    heard_within: Duration,
    waiting: WaitingOpens,
}

/// The newest request of each agent, in the order in which the agents came. Bounded by `QUEUE`.
#[derive(Debug, Default)]
struct WaitingOpens {
    order: VecDeque<AgentId>,
    jobs: HashMap<AgentId, Job>,
}

impl Opener {
    pub fn new(
        store: Store,
        instance: watch::Receiver<Uuid>,
        closer: Arc<Closer>,
        heard_within: Duration,
    ) -> (Self, OpenerPart) {
        let (sender, jobs) = mpsc::channel(QUEUE);
        let part = OpenerPart {
            jobs,
            store,
            instance,
            closer,
            heard_within,
            waiting: WaitingOpens::default(),
        };
        (Self(sender), part)
    }

    /// The client has proven the key that the agent is pinned to ([`Pins`](super::Pins)).
    pub async fn open(&self, open: SessionOpen) -> Result<Opened, OpenError> {
        let (reply, answer) = oneshot::channel();
        let expires = Instant::now() + OPEN_VALIDITY;
        let job = Job {
            open,
            expires,
            reply,
        };
        self.0.try_send(job).map_err(|_| OpenError::Overloaded)?;
        answer.await.map_err(|_| OpenError::Unavailable)?
    }
}

impl OpenerPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(more) = stop.run_until_cancelled(self.gather()).await {
            if !more {
                break; // All handles are gone.
            }
            let sent = Instant::now();
            let batch = self.waiting.take_batch();
            if !batch.is_empty() {
                self.pass(batch).await;
            }
            if !sleep_until(sent + PAUSE, &stop).await {
                break;
            }
        }
        stop.cancelled().await;
        Ok(())
    }

    /// Waits until there is a request; `false` once there can be none. Cancel-safe: what was received is in
    /// `waiting`.
    async fn gather(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.jobs.recv().await {
                Some(job) => self.waiting.put(job),
                None => return false,
            }
        }
        while self.waiting.len() < QUEUE
            && let Ok(job) = self.jobs.try_recv()
        {
            self.waiting.put(job);
        }
        true
    }

    async fn pass(&mut self, batch: Vec<Job>) {
        let opens: Vec<SessionOpen> = batch.iter().map(|job| job.open.clone()).collect();
        let instance = *self.instance.borrow();
        let opened = self
            .store
            .sessions_open(instance, &opens, self.heard_within);
        match opened.await {
            Ok(opened) => self.answer(batch, opened),
            // The server answered, so the others of the batch need not suffer.
            Err(error) if error.sqlstate().is_some() && batch.len() > 1 => {
                REPEATED.line(|suppressed| {
                    tracing::warn!(%error, streams = batch.len(), suppressed, "a batch of streams could not be opened: repeating it one by one");
                });
                for job in batch {
                    Box::pin(self.pass(vec![job])).await;
                }
            }
            Err(error) => {
                let failure = failure(error);
                for job in batch {
                    drop(job.reply.send(Err(failure)));
                }
            }
        }
    }

    fn answer(&mut self, batch: Vec<Job>, opened: Vec<(AgentId, Opened)>) {
        let mut opened: HashMap<AgentId, Opened> = opened.into_iter().collect();
        for job in batch {
            match opened.remove(&job.open.agent_id) {
                Some(Opened::Locked) => self.waiting.put_back(job),
                Some(Opened::Late) | None => drop(job.reply.send(Err(OpenError::Unavailable))),
                Some(opened) => self.deliver(job, opened),
            }
        }
    }

    /// If the client has left meanwhile, the session that was opened for it is closed again.
    fn deliver(&self, job: Job, opened: Opened) {
        if let Err(Ok(Opened::Open { epoch, .. })) = job.reply.send(Ok(opened)) {
            self.closer.close_abandoned(job.open.agent_id, epoch);
        }
    }
}

impl WaitingOpens {
    /// Adds a request, which replaces an older one of the same agent.
    fn put(&mut self, job: Job) {
        let agent = job.open.agent_id;
        match self.jobs.insert(agent, job) {
            Some(older) => drop(older.reply.send(Err(OpenError::Replaced))),
            None => self.order.push_back(agent),
        }
    }

    /// Adds a request that was tried before, unless a newer one of its agent has arrived meanwhile.
    fn put_back(&mut self, job: Job) {
        if self.jobs.contains_key(&job.open.agent_id) {
            drop(job.reply.send(Err(OpenError::Replaced)));
        } else {
            self.put(job);
        }
    }

    /// The next requests, without those whose client has left and those that have expired.
    fn take_batch(&mut self) -> Vec<Job> {
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(agent) = self.order.pop_front()
        {
            match self.jobs.remove(&agent) {
                Some(job) if job.reply.is_closed() => {}
                Some(job) if job.expires <= Instant::now() => {
                    drop(job.reply.send(Err(OpenError::Unavailable)));
                }
                job => batch.extend(job),
            }
        }
        batch
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

fn failure(error: StoreError) -> OpenError {
    let reason = chain(&error);
    FAILED.line(|suppressed| {
        tracing::warn!(reason, suppressed, "streams could not be opened");
    });
    match error.is_unavailable() {
        true => OpenError::Unavailable,
        false => OpenError::Failed,
    }
}
