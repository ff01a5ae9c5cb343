//! JWTs for approved agents: signed first, then the agent's status read, and
//! released only if it is ACTIVE.
//!
//! That order needs no lock: whatever is released was read to be active *after*
//! its signature existed, so none is ever released after a revocation committed.

use std::sync::Arc;

use jiff::Timestamp;
use svc_store::{AgentId, AgentStatus, Store, StoreError};
use tokio::sync::Semaphore;

use crate::signing::{Jwt, SigningKey};

#[derive(Clone, Debug)]
pub struct Issuer {
    store: Store,
    key: Arc<SigningKey>,
    /// A signature is half a millisecond of CPU: as many at once as there are cores.
    signing: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the agent is not active")]
    NotActive(Option<AgentStatus>),
    #[error("the token could not be signed")]
    Signing,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Issuer {
    pub fn new(store: Store, key: Arc<SigningKey>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            store,
            key,
            signing: Arc::new(Semaphore::new(cores)),
        }
    }

    pub async fn issue(&self, agent: AgentId) -> Result<Jwt, IssueError> {
        let jwt = self.sign(agent).await?;
        match self.store.agent_status(agent).await? {
            Some(AgentStatus::Active) => Ok(jwt),
            status => Err(IssueError::NotActive(status)),
        }
    }

    async fn sign(&self, agent: AgentId) -> Result<Jwt, IssueError> {
        let permit = self
            .signing
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| IssueError::Signing)?;
        let key = self.key.clone();
        let signed = tokio::task::spawn_blocking(move || {
            let _held_while_signing = permit;
            key.sign(&agent.to_string(), Timestamp::now())
        });
        signed
            .await
            .map_err(|_| IssueError::Signing)?
            .map_err(|_| IssueError::Signing)
    }
}
