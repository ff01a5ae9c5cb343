//! Registration with a key that has an agent already.

use svc_store::{AgentStatus, KnownAgent, Liveness, RegistrationTx, TokenEffect, TokenState};

use super::{Enrolment, RegisterError, RegisteredAgent, Registration, actor};

impl Enrolment {
    pub(super) async fn known_key(
        &self,
        tx: &RegistrationTx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<RegisteredAgent, RegisterError> {
        match known.status {
            AgentStatus::Active => self.known_active(tx, wanted, known).await,
            AgentStatus::Pending => self.known_pending(tx, wanted, known).await,
            status => Ok(RegisteredAgent::new(&known, status)),
        }
    }

    /// The facts update the host's record, but never move an agent to another host.
    async fn known_active(
        &self,
        tx: &RegistrationTx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<RegisteredAgent, RegisterError> {
        let machine = &wanted.facts.identifiers;
        if tx.same_machine(known.host_id, machine).await? == Some(false) {
            other_machine(tx, wanted, &known).await?;
        }
        tx.host_refresh(known.host_id, &wanted.facts).await?;
        tx.agent_refresh(known.id, &wanted.agent, &wanted.facts)
            .await?;
        Ok(RegisteredAgent::new(&known, AgentStatus::Active))
    }

    /// The only case in which a known key uses a token: the agent is pending, and an auto-approve token activates it.
    /// A person has rejected or revoked a reopened agent before, so a person decides about it again.
    async fn known_pending(
        &self,
        tx: &RegistrationTx,
        wanted: &Registration,
        known: KnownAgent,
    ) -> Result<RegisteredAgent, RegisterError> {
        tx.agent_refresh(known.id, &wanted.agent, &wanted.facts)
            .await?;
        let pending = RegisteredAgent::new(&known, AgentStatus::Pending);
        let (host, quiet) = (Some(known.host_id), self.reinstall_quiet);
        let token = match wanted.token {
            Some(hash) if !known.reopened => tx.token_by_hash(&hash.0, host, quiet).await?,
            _ => None,
        };
        let Some(token) = token.filter(|token| token.state == TokenState::Active) else {
            return Ok(pending);
        };
        let mode = match token.effect {
            TokenEffect::Activate => None,
            TokenEffect::Replace(_) => Some("replace"),
            TokenEffect::LeavePending | TokenEffect::Conflict(_) => return Ok(pending),
        };
        tx.agent_approve(known.id, &actor(&token), mode).await?;
        tx.token_spend(token.id, &wanted.key.0).await?;
        Ok(RegisteredAgent::new(&known, AgentStatus::Active))
    }
}

/// The key was active on another machine. It is a copy if that machine was heard lately. If that machine only counts as
/// online, this may be the same agent after a failover: it waits until the other one is heard, or offline. If that
/// machine is offline, this one takes its place.
async fn other_machine(
    tx: &RegistrationTx,
    wanted: &Registration,
    known: &KnownAgent,
) -> Result<(), RegisterError> {
    let agent = known.id;
    match known.liveness {
        Liveness::Heard => Err(RegisterError::IdentityInUse { agent }),
        Liveness::Presumed => {
            tx.agent_contest(agent).await?;
            Err(RegisterError::IdentityPresumedInUse { agent })
        }
        Liveness::Offline => {
            tx.machine_changed(known, &wanted.facts.identifiers).await?;
            Ok(())
        }
    }
}
