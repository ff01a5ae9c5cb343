//! JWTs for approved agents: sign first, then read the agent's status, then release the JWT.
//!
//! **Invariant.** No JWT is released whose agent was revoked before the JWT was signed.
//!
//! **Danger.** In the other order, reading the status first, a revocation could commit between the read and the
//! signature. Signing takes time and may queue for a core, so that the window is not small, and the revoked agent would
//! hold a JWT that is valid for a day.
//!
//! **Why this is safe.** The status is read *after* the signature exists. If it reads active, no revocation had
//! committed by then, so every revocation is later than the signature. If it reads anything else, the JWT is dropped
//! and no client ever sees it. No lock is needed. A revocation that commits after the read is the ordinary case of an
//! agent that holds a JWT when it is revoked: the heartbeat stream checks the status itself.

use std::sync::Arc;

use svc_store::{AgentId, AgentStatus, Store};
use tokio::sync::Semaphore;

use super::statuses::{StatusError, StatusPart, Statuses};
use crate::{
    clock::DatabaseClock,
    signing::{Jwt, Keyring},
};

/// Issues JWTs with the service's signing key.
#[derive(Clone, Debug)]
pub struct Issuer {
    statuses: Statuses,
    keys: Arc<Keyring>,
    clock: DatabaseClock,
    /// One permit for each core: a signature costs half a millisecond of CPU.
    signing: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the agent is not active")]
    NotActive(Option<AgentStatus>),
    #[error("the token could not be signed")]
    Signing,
    #[error(transparent)]
    Status(#[from] StatusError),
}

impl Issuer {
    pub fn new(store: Store, keys: Arc<Keyring>, clock: DatabaseClock) -> (Self, StatusPart) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (statuses, part) = Statuses::new(store);
        let issuer = Self {
            statuses,
            keys,
            clock,
            signing: Arc::new(Semaphore::new(cores)),
        };
        (issuer, part)
    }

    /// Signs a JWT, and returns it only if the agent is active afterwards.
    pub async fn issue(&self, agent: AgentId) -> Result<Jwt, IssueError> {
        let jwt = self.sign(agent).await?;
        match self.statuses.read(agent).await? {
            Some(AgentStatus::Active) => Ok(jwt),
            status => Err(IssueError::NotActive(status)),
        }
    }

    async fn sign(&self, agent: AgentId) -> Result<Jwt, IssueError> {
        let permit = self.signing.clone().acquire_owned().await;
        let permit = permit.map_err(|_| IssueError::Signing)?;
        let (keys, clock) = (self.keys.clone(), self.clock.clone());
        let signed = tokio::task::spawn_blocking(move || {
            let _held_while_signing = permit;
            keys.signing().sign(&agent.to_string(), clock.now())
        });
        let signed = signed.await.map_err(|_| IssueError::Signing)?;
        signed.map_err(|_| IssueError::Signing)
    }
}
