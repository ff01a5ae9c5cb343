//! The statuses of agents whose JWTs were just signed, read for all of them at once.
//!
//! A caller asks after it has signed, and a query begins only after it has taken its questions. So an answer is always
//! newer than the signature that it decides about.

use std::collections::HashMap;

use svc_store::{AgentId, AgentStatus, Bulkhead, Store};
use tokio_util::sync::CancellationToken;

use crate::{
    batched::{Batch, Batched, Batches, batched},
    error_chain::chain,
    log_limit::LogLimit,
};

const BATCH: usize = 512;
/// Questions that wait for a batch. One more is answered as if the database were away.
const QUEUE: usize = 32 * 1024;

static FAILED: LogLimit = LogLimit::new();

/// `None`: the agent was deleted.
type Answer = Result<Option<AgentStatus>, StatusError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    #[error("the database is away")]
    Unavailable,
    #[error("the database refused the lookup of the agent's status")]
    Failed,
}

/// The handle through which the issuer asks.
#[derive(Clone, Debug)]
pub(super) struct Statuses(Batched<AgentId, Answer>);

/// The background part that reads statuses.
#[derive(Debug)]
pub struct StatusPart {
    questions: Batches<AgentId, Answer>,
    store: Store,
}

impl Statuses {
    pub(super) fn new(store: Store) -> (Self, StatusPart) {
        let (handle, questions) = batched(QUEUE);
        (Self(handle), StatusPart { questions, store })
    }

    pub(super) async fn read(&self, agent: AgentId) -> Answer {
        let answer = self.0.ask(agent).await;
        answer.map_err(|_| StatusError::Unavailable)?
    }
}

impl StatusPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = self.questions.next(BATCH, &stop).await {
            self.pass(batch).await;
        }
        Ok(())
    }

    async fn pass(&self, batch: Batch<AgentId, Answer>) {
        let agents: Vec<AgentId> = batch.questions().copied().collect();
        match self.store.agents_statuses(Bulkhead::Auth, &agents).await {
            Ok(found) => {
                let found: HashMap<AgentId, AgentStatus> = found.into_iter().collect();
                batch.answer(agents.iter().map(|agent| Ok(found.get(agent).copied())));
            }
            Err(error) => {
                let (reason, jwts) = (chain(&error), batch.count());
                FAILED.line(|suppressed| {
                    tracing::warn!(
                        reason,
                        jwts,
                        suppressed,
                        "the statuses of agents could not be read"
                    );
                });
                batch.answer_all(|| match error.is_unavailable() {
                    true => Err(StatusError::Unavailable),
                    false => Err(StatusError::Failed),
                });
            }
        }
    }
}
