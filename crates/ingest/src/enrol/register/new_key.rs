//! Registration of a key that has no agent yet: by token, or as the successor of a cloned key.

use svc_front::peer::ClientKey;
use svc_store::{AgentStatus, HostId, NewAgent, RegistrationTx, TokenEffect, TokenRow};

use super::{
    Enrolment, MAX_PENDING_CLONES, RegisterError, RegisteredAgent, Registration, actor, check_token,
};

impl Enrolment {
    pub(super) async fn new_key(
        &self,
        tx: &RegistrationTx,
        wanted: &Registration,
    ) -> Result<RegisteredAgent, RegisterError> {
        let hash = wanted.token.ok_or(RegisterError::TokenMissing)?;
        let found = tx.host_match(&wanted.facts.identifiers).await?;
        let found = found.map(|host| host.id);
        let token = tx.token_by_hash(&hash.0, found, self.reinstall_quiet);
        let token = token.await?.ok_or(RegisterError::TokenUnknown)?;
        check_token(&token.state)?;
        let host = host(tx, wanted, &token, found).await?;
        let registered = insert(tx, wanted, &token, host).await?;
        tx.token_spend(token.id, &wanted.key.0).await?;
        Ok(registered)
    }

    pub(super) async fn successor(
        &self,
        tx: &RegistrationTx,
        wanted: &Registration,
        successor: ClientKey,
    ) -> Result<RegisteredAgent, RegisterError> {
        let origin = tx.agent_by_key(&wanted.key.0, self.heard_within).await?;
        let origin = origin
            .filter(|origin| origin.status == AgentStatus::Active)
            .ok_or(RegisterError::NotAnOrigin)?;
        if origin.retired {
            tx.retired_key_used(&wanted.key.0, wanted.address).await?;
        }
        let origin = origin.id;
        if let Some(known) = tx.agent_by_key(&successor.0, self.heard_within).await? {
            return Ok(RegisteredAgent::new(&known, known.status));
        }
        if tx.clones_pending(origin).await? >= MAX_PENDING_CLONES {
            return Err(RegisterError::TooManyClones { origin });
        }
        let found = tx.host_match(&wanted.facts.identifiers).await?;
        let conflict_with = found.as_ref().and_then(|host| host.incumbent);
        let host = match found {
            Some(host) => host.id,
            None => tx.host_insert(&wanted.facts).await?,
        };
        let new = NewAgent {
            key: &successor.0,
            host_id: host,
            status: AgentStatus::Pending,
            pending_reason: Some("clone"),
            conflict_with,
            cloned_from: Some(origin),
            token_id: None,
            decided_by: None,
            facts: &wanted.facts,
            agent: &wanted.agent,
            address: wanted.address,
        };
        insert_agent(tx, &new).await
    }
}

/// The machine's host record. A pending agent must not change an existing one: a trigger of the database applies what
/// the agent says when it is admitted.
async fn host(
    tx: &RegistrationTx,
    wanted: &Registration,
    token: &TokenRow,
    found: Option<HostId>,
) -> Result<HostId, RegisterError> {
    let host = match (found, token.effect) {
        (None, _) => tx.host_insert(&wanted.facts).await?,
        (Some(host), TokenEffect::Conflict(_) | TokenEffect::LeavePending) => return Ok(host),
        (Some(host), TokenEffect::Activate | TokenEffect::Replace(_)) => {
            tx.host_refresh(host, &wanted.facts).await?;
            host
        }
    };
    tx.host_label(host, token.id).await?;
    Ok(host)
}

async fn insert(
    tx: &RegistrationTx,
    wanted: &Registration,
    token: &TokenRow,
    host: HostId,
) -> Result<RegisteredAgent, RegisterError> {
    let (status, conflict_with) = match token.effect {
        TokenEffect::Activate | TokenEffect::Replace(_) => (AgentStatus::Active, None),
        TokenEffect::LeavePending => (AgentStatus::Pending, None),
        TokenEffect::Conflict(incumbent) => (AgentStatus::Pending, Some(incumbent)),
    };
    if let TokenEffect::Replace(incumbent) = token.effect {
        tx.agent_revoke(incumbent, &actor(token), "superseded by a reinstallation")
            .await?;
    }
    let new = NewAgent {
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
        address: wanted.address,
    };
    insert_agent(tx, &new).await
}

async fn insert_agent(
    tx: &RegistrationTx,
    new: &NewAgent<'_>,
) -> Result<RegisteredAgent, RegisterError> {
    Ok(RegisteredAgent {
        agent: tx.agent_insert(new).await?,
        host: new.host_id,
        status: new.status,
        conflict_with: new.conflict_with,
        changed: true,
    })
}
