//! Registration of an agent: one transaction that takes a client's key, token and facts, and returns its agent. All
//! rules are here. The batches of newcomers apply only the simplest: a new key on an unknown machine.
//!
//! A key is admitted once: repeated, lost and parallel calls result in one agent and one use of the token, because the
//! transaction first locks the key and the machine's identifiers. A known key never needs a token. A new key on a
//! machine that has an active agent is pending until a person decides, whatever its token allows. A pending agent
//! changes nothing of an existing host: the host takes its facts and labels when it is admitted.

mod known_key;
mod new_key;

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use svc_front::peer::ClientKey;
use svc_store::{
    AgentFacts, AgentId, AgentStatus, CellRecord, HostFacts, HostId, KnownAgent, RegistrationTx,
    Store, StoreError, TokenRow, TokenState,
};

use super::TokenHash;
use crate::{batched::Unanswered, config::Timing};

/// How many clones of one agent may be pending at once.
const MAX_PENDING_CLONES: i64 = 10;

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Registration {
    pub key: ClientKey,
    pub token: Option<TokenHash>,
    pub facts: HostFacts,
    pub agent: AgentFacts,
    /// The address of the client.
    pub address: IpAddr,
}

/// The result of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredAgent {
    pub agent: AgentId,
    pub host: HostId,
    pub status: AgentStatus,
    /// While the agent is pending: the active agent of the same machine.
    pub conflict_with: Option<AgentId>,
    /// The agent is new, or has another status than before.
    pub changed: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("this key is not known here, and no enrolment token came with it")]
    TokenMissing,
    #[error("the enrolment token is not known here")]
    TokenUnknown,
    #[error("the enrolment token expired at {at}")]
    TokenExpired { at: Timestamp },
    #[error("the enrolment token was used up{}", at.map(|at| format!(" at {at}")).unwrap_or_default())]
    TokenExhausted { at: Option<Timestamp> },
    #[error("the enrolment token was revoked at {at}")]
    TokenRevoked { at: Timestamp },
    #[error("another key of agent {agent} has taken the place of this one")]
    RetiredKey { agent: AgentId },
    #[error("the same key is live on another machine")]
    IdentityInUse { agent: AgentId },
    #[error("the same key counts as online on another machine, which is not heard")]
    IdentityPresumedInUse { agent: AgentId },
    #[error("only an active agent's key can ask for a successor")]
    NotAnOrigin,
    #[error("{MAX_PENDING_CLONES} clones of agent {origin} wait for a decision already")]
    TooManyClones { origin: AgentId },
    #[error("too many registrations")]
    RateLimited { retry: Duration },
    #[error("too many registrations wait")]
    Overloaded,
    #[error("the database is away")]
    Unavailable,
    #[error("the database refused the lookup of key and token")]
    LookupFailed,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Registers agents that [`Admission`](super::Admission) has admitted.
#[derive(Debug)]
pub struct Enrolment {
    store: Store,
    /// How long an agent must have been offline before a token may replace it.
    reinstall_quiet: Duration,
    /// How recent a message proves that an agent's stream is live.
    heard_within: Duration,
}

impl Enrolment {
    pub fn new(store: Store, timing: &Timing) -> Self {
        Self {
            store,
            reinstall_quiet: timing.reinstall_quiet,
            heard_within: timing.heard_within(None),
        }
    }

    /// The other cell that an agent is told to be in.
    pub async fn move_of(&self, agent: AgentId) -> Result<Option<CellRecord>, StoreError> {
        self.store.move_of(agent).await
    }

    /// Registers the client's own key.
    pub async fn register(&self, wanted: &Registration) -> Result<RegisteredAgent, RegisterError> {
        self.store
            .registration_run("register", |tx| async move {
                tx.registration_lock(&[&wanted.key.0], &wanted.facts.identifiers)
                    .await?;
                let known = tx.agent_by_key(&wanted.key.0, self.heard_within).await?;
                refusal_as_outcome(match known {
                    Some(known) if known.retired => retired(&tx, wanted, known.id).await,
                    Some(known) => self.known_key(&tx, wanted, known).await,
                    None => self.new_key(&tx, wanted).await,
                })
            })
            .await?
    }

    /// Registers `successor`, the new key of a clone. The client proves the key that was cloned.
    pub async fn register_successor(
        &self,
        wanted: &Registration,
        successor: ClientKey,
    ) -> Result<RegisteredAgent, RegisterError> {
        self.store
            .registration_run("register_successor", |tx| async move {
                tx.registration_lock(&[&wanted.key.0, &successor.0], &wanted.facts.identifiers)
                    .await?;
                refusal_as_outcome(self.successor(&tx, wanted, successor).await)
            })
            .await?
    }
}

impl RegisteredAgent {
    fn new(known: &KnownAgent, status: AgentStatus) -> Self {
        let pending = status == AgentStatus::Pending;
        Self {
            agent: known.id,
            host: known.host_id,
            status,
            conflict_with: known.conflict_with.filter(|_| pending),
            changed: status != known.status,
        }
    }

    /// Logs it for the operator, unless nothing changed: any client with a key, even of a rejected agent, may call again and again.
    pub fn log(&self, key: ClientKey, facts: &HostFacts) {
        if !self.changed {
            tracing::debug!(agent.id = %self.agent, "a known agent registered");
            return;
        }
        tracing::info!(
            agent.id = %self.agent, agent.status = self.status.as_str(), agent.key = %key,
            host.id = %self.host, host.name = facts.hostname, "registered"
        );
    }
}

impl From<Unanswered> for RegisterError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Full => Self::Overloaded,
            Unanswered::Ended => Self::Unavailable,
        }
    }
}

/// Its use is recorded, for a person to see.
async fn retired(
    tx: &RegistrationTx,
    wanted: &Registration,
    agent: AgentId,
) -> Result<RegisteredAgent, RegisterError> {
    tx.retired_key_used(&wanted.key.0, wanted.address).await?;
    Err(RegisterError::RetiredKey { agent })
}

/// Separates the two kinds of errors inside a transaction. A refusal is a result that commits, and is not retried; an
/// error of the database rolls back, and `Store::run` decides whether to retry.
fn refusal_as_outcome<T>(
    result: Result<T, RegisterError>,
) -> Result<Result<T, RegisterError>, StoreError> {
    match result {
        Err(RegisterError::Store(error)) => Err(error),
        outcome => Ok(outcome),
    }
}

pub(super) fn check_token(state: &TokenState) -> Result<(), RegisterError> {
    match state {
        TokenState::Active => Ok(()),
        TokenState::Expired { at } => Err(RegisterError::TokenExpired { at: *at }),
        TokenState::Exhausted { at } => Err(RegisterError::TokenExhausted { at: *at }),
        TokenState::Revoked { at } => Err(RegisterError::TokenRevoked { at: *at }),
    }
}

/// The actor on record, where a token decided and not a person.
fn actor(token: &TokenRow) -> String {
    format!("token {}", token.id)
}
