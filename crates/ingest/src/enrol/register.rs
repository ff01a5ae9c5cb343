//! A registration: one transaction, from the client's key, its token and its
//! machine's facts to where its agent stands.
//!
//! A key is admitted once: repeated, lost and parallel calls end in one agent and
//! one use of the token. A known key never needs a token; a new key on a machine
//! that has an active agent waits for a person, whatever its token says.

use std::time::Duration;

use jiff::Timestamp;
use svc_store::{
    AgentFacts, AgentId, AgentStatus, Bulkhead, HostFacts, HostId, HostMatch, Incumbent,
    KnownAgent, NewAgent, Store, StoreError, TokenRow, TokenState, Tx, same_machine,
};
use tokio::time::Instant;

use super::{RegisterLimits, TokenHash};
use crate::peer::ClientKey;

/// How many clones of one agent may wait for a decision.
const MAX_PENDING_CLONES: i64 = 10;

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Registration {
    pub key: ClientKey,
    pub token: Option<TokenHash>,
    pub facts: HostFacts,
    pub agent: AgentFacts,
}

/// Where an agent stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub agent: AgentId,
    pub host: HostId,
    pub status: AgentStatus,
    /// While it is pending: the active agent of the same machine.
    pub conflict_with: Option<AgentId>,
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
    #[error("the same key is live on another machine")]
    IdentityInUse { agent: AgentId },
    #[error("only an active agent's key can ask for a successor")]
    NotAnOrigin,
    #[error("{MAX_PENDING_CLONES} clones of agent {origin} wait for a decision already")]
    TooManyClones { origin: AgentId },
    #[error("too many registrations")]
    RateLimited { retry: Duration },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the transaction found: a refusal is an outcome, not a failure of the database.
type Outcome = Result<Standing, RegisterError>;

#[derive(Debug)]
pub struct Enrolment {
    store: Store,
    limits: RegisterLimits,
    /// How long an agent must have been offline before a token may replace it.
    reinstall_quiet: Duration,
}

/// What a token makes of a registration.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Active,
    Pending,
    Conflict(AgentId),
    Replace(AgentId),
}

impl Enrolment {
    pub fn new(store: Store, reinstall_quiet: Duration) -> Self {
        Self {
            store,
            limits: RegisterLimits::new(Instant::now()),
            reinstall_quiet,
        }
    }

    /// Registers a client's own key.
    pub async fn register(&self, wanted: &Registration) -> Result<Standing, RegisterError> {
        self.check_limits(wanted).await?;
        self.store
            .run("register", Bulkhead::Auth, |tx| async move {
                tx.registration_lock(&[&wanted.key.0], &wanted.facts.identifiers)
                    .await?;
                match tx.agent_by_key(&wanted.key.0).await? {
                    Some(known) => self.known_key(&tx, wanted, known).await,
                    None => self.new_key(&tx, wanted).await,
                }
            })
            .await?
    }

    /// Registers, over a key that was cloned, the new key that the clone has made for itself.
    pub async fn register_successor(
        &self,
        wanted: &Registration,
        successor: ClientKey,
    ) -> Result<Standing, RegisterError> {
        self.check_limits(wanted).await?;
        self.store
            .run("register_successor", Bulkhead::Auth, |tx| async move {
                tx.registration_lock(&[&wanted.key.0, &successor.0], &wanted.facts.identifiers)
                    .await?;
                self.successor(&tx, wanted, successor).await
            })
            .await?
    }

    /// Strangers are turned away before any transaction, at their own bucket's cost.
    async fn check_limits(&self, wanted: &Registration) -> Result<(), RegisterError> {
        let limited = |retry| RegisterError::RateLimited { retry };
        self.limits
            .key(wanted.key, Instant::now())
            .map_err(limited)?;
        let token = wanted.token.as_ref().map(|hash| &hash.0);
        let look = self.store.registration_look(&wanted.key.0, token).await?;
        self.limits.class(&look, Instant::now()).map_err(limited)?;
        if look.key_known {
            return Ok(());
        }
        match (wanted.token, look.token) {
            (None, _) => Err(RegisterError::TokenMissing),
            (Some(_), None) => Err(RegisterError::TokenUnknown),
            (Some(_), Some(state)) => usable(&state),
        }
    }

    async fn known_key(
        &self,
        tx: &Tx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<Outcome, StoreError> {
        match known.status {
            AgentStatus::Active => self.known_active(tx, wanted, known).await,
            AgentStatus::Pending => self.known_pending(tx, wanted, known).await,
            AgentStatus::Rejected | AgentStatus::Revoked => Ok(Ok(standing(&known, known.status))),
        }
    }

    /// The facts refresh the host; they never move an agent to another.
    async fn known_active(
        &self,
        tx: &Tx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<Outcome, StoreError> {
        let machine = tx.host_identifiers(known.host_id).await?;
        if known.online && same_machine(&machine, &wanted.facts.identifiers) == Some(false) {
            return Ok(Err(RegisterError::IdentityInUse { agent: known.id }));
        }
        tx.host_refresh(known.host_id, &wanted.facts).await?;
        tx.agent_refresh(known.id, &wanted.agent, &wanted.facts)
            .await?;
        Ok(Ok(standing(&known, AgentStatus::Active)))
    }

    /// The one case in which a known key spends a token: it waits, and this one approves.
    async fn known_pending(
        &self,
        tx: &Tx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<Outcome, StoreError> {
        tx.agent_refresh(known.id, &wanted.agent, &wanted.facts)
            .await?;
        let token = match wanted.token {
            Some(hash) => tx.token_by_hash(&hash.0).await?,
            None => None,
        };
        let Some(token) =
            token.filter(|token| token.state == TokenState::Active && token.auto_approve)
        else {
            return Ok(Ok(standing(&known, AgentStatus::Pending)));
        };
        let incumbent = tx.host_incumbent(known.host_id).await?;
        let mode = match self.admit(&token, incumbent.as_ref()) {
            Admission::Active => None,
            Admission::Replace(_) => Some("replace"),
            Admission::Pending | Admission::Conflict(_) => {
                return Ok(Ok(standing(&known, AgentStatus::Pending)));
            }
        };
        tx.agent_approve(known.id, &actor(&token), mode).await?;
        tx.token_spend(token.id).await?;
        Ok(Ok(standing(&known, AgentStatus::Active)))
    }

    async fn new_key(&self, tx: &Tx, wanted: &Registration) -> Result<Outcome, StoreError> {
        let Some(hash) = wanted.token else {
            return Ok(Err(RegisterError::TokenMissing));
        };
        let Some(token) = tx.token_by_hash(&hash.0).await? else {
            return Ok(Err(RegisterError::TokenUnknown));
        };
        if let Err(refused) = usable(&token.state) {
            return Ok(Err(refused));
        }
        let found = tx.host_match(&wanted.facts.identifiers).await?;
        let incumbent = found.as_ref().and_then(|host| host.incumbent.as_ref());
        let admission = self.admit(&token, incumbent);
        let host = self.host(tx, wanted, found.as_ref(), &admission).await?;
        tx.host_label(host, &token.labels).await?;
        let outcome = self.insert(tx, wanted, &token, host, &admission).await?;
        tx.token_spend(token.id).await?;
        Ok(Ok(outcome))
    }

    /// What a usable token makes of a key on a machine with this active agent.
    fn admit(&self, token: &TokenRow, incumbent: Option<&Incumbent>) -> Admission {
        match incumbent {
            None if token.auto_approve => Admission::Active,
            None => Admission::Pending,
            Some(incumbent) => {
                let quiet = incumbent
                    .offline_for
                    .is_some_and(|offline| offline >= self.reinstall_quiet);
                if token.auto_approve && token.allow_reinstall && quiet {
                    Admission::Replace(incumbent.id)
                } else {
                    Admission::Conflict(incumbent.id)
                }
            }
        }
    }

    /// The host record. A waiting key writes nothing on the record of a machine that has an agent.
    async fn host(
        &self,
        tx: &Tx,
        wanted: &Registration,
        found: Option<&HostMatch>,
        admission: &Admission,
    ) -> Result<HostId, StoreError> {
        let Some(host) = found else {
            return tx.host_insert(&wanted.facts).await;
        };
        if !matches!(admission, Admission::Conflict(_)) {
            tx.host_refresh(host.id, &wanted.facts).await?;
        }
        Ok(host.id)
    }

    async fn insert(
        &self,
        tx: &Tx,
        wanted: &Registration,
        token: &TokenRow,
        host: HostId,
        admission: &Admission,
    ) -> Result<Standing, StoreError> {
        let conflict_with = match admission {
            Admission::Conflict(incumbent) => Some(*incumbent),
            _ => None,
        };
        let status = match admission {
            Admission::Active | Admission::Replace(_) => AgentStatus::Active,
            Admission::Pending | Admission::Conflict(_) => AgentStatus::Pending,
        };
        if let Admission::Replace(incumbent) = admission {
            tx.agent_revoke(*incumbent, &actor(token), "superseded by a reinstallation")
                .await?;
        }
        let agent = tx
            .agent_insert(&NewAgent {
                key: &wanted.key.0,
                host_id: host,
                status,
                pending_reason: conflict_with.map(|_| "conflict"),
                conflict_with,
                cloned_from: None,
                token_id: Some(token.id),
                decided_by: (status == AgentStatus::Active).then(|| actor(token)),
                facts: &wanted.facts,
                agent: &wanted.agent,
            })
            .await?;
        Ok(Standing {
            agent,
            host,
            status,
            conflict_with,
        })
    }

    async fn successor(
        &self,
        tx: &Tx,
        wanted: &Registration,
        successor: ClientKey,
    ) -> Result<Outcome, StoreError> {
        let origin = match tx.agent_by_key(&wanted.key.0).await? {
            Some(origin) if origin.status == AgentStatus::Active => origin,
            _ => return Ok(Err(RegisterError::NotAnOrigin)),
        };
        if let Some(known) = tx.agent_by_key(&successor.0).await? {
            return Ok(Ok(standing(&known, known.status)));
        }
        if tx.clones_pending(origin.id).await? >= MAX_PENDING_CLONES {
            return Ok(Err(RegisterError::TooManyClones { origin: origin.id }));
        }
        let found = tx.host_match(&wanted.facts.identifiers).await?;
        let conflict_with = found
            .as_ref()
            .and_then(|host| host.incumbent.as_ref())
            .map(|incumbent| incumbent.id);
        let host = match found {
            Some(host) => host.id,
            None => tx.host_insert(&wanted.facts).await?,
        };
        let agent = tx
            .agent_insert(&NewAgent {
                key: &successor.0,
                host_id: host,
                status: AgentStatus::Pending,
                pending_reason: Some("clone"),
                conflict_with,
                cloned_from: Some(origin.id),
                token_id: None,
                decided_by: None,
                facts: &wanted.facts,
                agent: &wanted.agent,
            })
            .await?;
        Ok(Ok(Standing {
            agent,
            host,
            status: AgentStatus::Pending,
            conflict_with,
        }))
    }
}

fn standing(known: &KnownAgent, status: AgentStatus) -> Standing {
    let conflict_with = known
        .conflict_with
        .filter(|_| status == AgentStatus::Pending);
    Standing {
        agent: known.id,
        host: known.host_id,
        status,
        conflict_with,
    }
}

fn usable(state: &TokenState) -> Result<(), RegisterError> {
    match state {
        TokenState::Active => Ok(()),
        TokenState::Expired { at } => Err(RegisterError::TokenExpired { at: *at }),
        TokenState::Exhausted { at } => Err(RegisterError::TokenExhausted { at: *at }),
        TokenState::Revoked { at } => Err(RegisterError::TokenRevoked { at: *at }),
    }
}

/// Who decided, where nobody but a token did.
fn actor(token: &TokenRow) -> String {
    format!("token {}", token.id)
}
