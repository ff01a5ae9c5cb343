//! The agent's part of a registration: found by its key, inserted, updated, decided.

use std::{net::IpAddr, time::Duration};

use super::RegistrationTx;
use crate::{
    prelude::*,
    values::{
        facts::{AgentFacts, HostFacts, Identifiers},
        liveness::Liveness,
        status::AgentStatus,
    },
};

record! {
    /// The agent of a key that registered before.
    #[derive(Clone, Debug)]
    pub struct KnownAgent {
        pub id: AgentId,
        pub host_id: HostId,
        pub status: AgentStatus,
        pub conflict_with: Option<AgentId>,
        /// It was rejected or revoked once, so only a person decides about it.
        pub reopened: bool,
        pub liveness: Liveness,
        /// The key was this agent's once. Another one has taken its place.
        pub retired: bool,
    }
}

/// A new agent, and why it has its first status.
#[derive(Clone, Debug)]
pub struct NewAgent<'a> {
    pub key: &'a [u8; 32],
    pub host_id: HostId,
    pub status: AgentStatus,
    pub pending_reason: Option<&'static str>,
    pub conflict_with: Option<AgentId>,
    pub cloned_from: Option<AgentId>,
    pub token_id: Option<TokenId>,
    pub decided_by: Option<String>,
    pub facts: &'a HostFacts,
    pub agent: &'a AgentFacts,
    /// The address of the client.
    pub address: IpAddr,
}

impl Store {
    /// The statuses of the agents that exist.
    pub async fn agents_statuses(
        &self,
        bulkhead: Bulkhead,
        agents: &[AgentId],
    ) -> Result<Vec<(AgentId, AgentStatus)>> {
        let sql = "-- agents_statuses\nSELECT id, status FROM agents WHERE id = ANY ($1)";
        let ids: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = params![ids];
        let rows = self.read("agents_statuses", bulkhead, sql, &params);
        let read = |row: &Row| Ok((row.try_get("id")?, row.try_get("status")?));
        rows.await?.iter().map(read).collect()
    }
}

impl RegistrationTx {
    /// The agent whose present, next or retired key this is.
    ///
    /// `heard_within`: how recent a message proves that the agent's stream is live.
    pub async fn agent_by_key(
        &self,
        key: &[u8; 32],
        heard_within: Duration,
    ) -> Result<Option<KnownAgent>> {
        let sql = "-- agent_by_key
            SELECT id, host_id, status, conflict_with, agent_liveness(state, $2) AS liveness,
                   pending_reason IS NOT DISTINCT FROM 'reopened' AS reopened, owner.retired
              FROM (SELECT a.id AS owner_id, false AS retired FROM agents a WHERE a.key = $1
                     UNION ALL
                    SELECT k.agent_id, k.retired_at IS NOT NULL FROM agent_keys k WHERE k.key = $1 LIMIT 1) owner
              JOIN agents ON id = owner_id JOIN agent_state state ON state.agent_id = id
               FOR UPDATE OF agents";
        let params = params![key.as_slice(), heard_within.as_secs_f64()];
        self.0.query_first(sql, &params).await
    }

    /// Inserts an agent. A trigger adds its state and its first event.
    pub async fn agent_insert(&self, new: &NewAgent<'_>) -> Result<AgentId> {
        let sql = "-- agent_insert
            INSERT INTO agents (key, host_id, status, pending_reason, conflict_with, cloned_from, token_id,
                                decided_by, decided_at, version, capabilities, facts, registered_from)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text, CASE WHEN $8::text IS NULL THEN NULL ELSE now() END,
                    $9, $10, $11, $12)
            RETURNING id";
        let params = params![
            new.key.as_slice(),
            new.host_id.0,
            new.status.as_str(),
            new.pending_reason,
            new.conflict_with.map(|id| id.0),
            new.cloned_from.map(|id| id.0),
            new.token_id.map(|id| id.0),
            new.decided_by,
            new.agent.version,
            new.agent.capabilities,
            Json(new.facts),
            new.address
        ];
        self.0.query_value(sql, &params).await
    }

    pub async fn agent_refresh(
        &self,
        id: AgentId,
        agent: &AgentFacts,
        facts: &HostFacts,
    ) -> Result<()> {
        let sql = "-- agent_refresh
            UPDATE agents SET version = $2, capabilities = $3, facts = $4 WHERE id = $1";
        let params = params![id.0, agent.version, agent.capabilities, Json(facts)];
        self.0.execute(sql, &params).await.map(drop)
    }

    /// Records that a retired key was used.
    pub async fn retired_key_used(&self, key: &[u8; 32], address: IpAddr) -> Result<()> {
        let sql = "-- retired_key_used\nSELECT agent_keys_used(ARRAY[$1::bytea], ARRAY[$2::inet])";
        let params = params![key.as_slice(), address];
        self.0.execute(sql, &params).await.map(drop)
    }

    /// Asks the instance that holds the agent's stream when it hears the agent.
    pub async fn agent_contest(&self, agent: AgentId) -> Result<()> {
        let sql = "-- agent_contest\nSELECT agent_contest($1)";
        self.0.execute(sql, &params![agent.0]).await.map(drop)
    }

    /// Records that the agent came from another machine, and removes the identifiers of the
    /// old machine from its host.
    pub async fn machine_changed(&self, agent: &KnownAgent, machine: &Identifiers) -> Result<()> {
        let sql = "-- machine_changed\nSELECT machine_changed($1, $2, $3)";
        let params = params![agent.id.0, agent.host_id.0, Json(machine)];
        self.0.execute(sql, &params).await.map(drop)
    }

    /// Approves an agent. `mode` (`replace` or `new-host`) is required if the host has an active
    /// agent.
    pub async fn agent_approve(
        &self,
        agent: AgentId,
        actor: &str,
        mode: Option<&str>,
    ) -> Result<()> {
        let sql = "-- agent_approve\nSELECT approve_agent($1, $2, $3)";
        let params = params![agent.0, actor, mode];
        self.0.execute(sql, &params).await.map(drop)
    }

    pub async fn agent_revoke(&self, agent: AgentId, actor: &str, reason: &str) -> Result<()> {
        let sql = "-- agent_revoke\nSELECT revoke_agent($1, $2, $3)";
        let params = params![agent.0, actor, reason];
        self.0.execute(sql, &params).await.map(drop)
    }

    /// The number of pending clones of `origin`.
    pub async fn clones_pending(&self, origin: AgentId) -> Result<i64> {
        let sql = "-- clones_pending
            SELECT count(*) AS pending FROM agents WHERE cloned_from = $1 AND status = 'pending'";
        let row = self.0.query_one(sql, &params![origin.0]).await?;
        Ok(row.try_get("pending")?)
    }
}
