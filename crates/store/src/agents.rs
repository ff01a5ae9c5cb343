//! Agents for the admin commands: lists, details and decisions.
//!
//! Decisions call the SQL functions that the web application calls too, so there is one set
//! of rules and one record of decisions.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{
    Row,
    types::{Json, Type},
};

use crate::{
    error::StoreError,
    ids::{AgentId, HostId, TokenId},
    labels::Labels,
    page::Page,
    pool::{Bulkhead, Store},
    record::record,
    status::AgentStatus,
    tx::Tx,
};

/// The hostname is the one that the agent reported itself, because a pending agent may share
/// the host record of another. For the same reason the labels of a pending agent are those that
/// its host will have once the agent is admitted.
const SELECT: &str = "SELECT a.id, a.host_id, shown.hostname, a.status, a.pending_reason, a.conflict_with,
                a.cloned_from, s.presence, s.presence_since, s.cause, encode(a.key, 'hex') AS key, a.version,
                a.token_id, shown.labels, a.created_at, a.decided_at, a.decided_by, a.decision_reason
           FROM agents a
           JOIN agent_state s ON s.agent_id = a.id
           JOIN hosts h ON h.id = a.host_id
           LEFT JOIN enrolment_tokens t ON t.id = a.token_id AND a.status = 'pending'
          CROSS JOIN LATERAL (
                SELECT coalesce(nullif(a.facts ->> 'hostname', ''), h.hostname) AS hostname,
                       h.labels || coalesce(t.labels, '{}') AS labels) shown";

/// How many events of an agent are shown, newest first.
const EVENTS_SHOWN: i64 = 100;

/// Which agents to list. The default is all.
#[derive(Debug, Clone, Default)]
pub struct AgentFilter {
    pub status: Option<AgentStatus>,
    /// Labels that the agent's host must all have.
    pub labels: Labels,
    pub hostname: Option<String>,
    pub host: Option<HostId>,
    pub token: Option<TokenId>,
}

record! {
    /// An agent with its presence and its host's labels.
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentRecord {
        pub id: AgentId,
        pub host_id: HostId,
        pub hostname: String,
        pub status: AgentStatus,
        pub pending_reason: Option<String>,
        pub conflict_with: Option<AgentId>,
        pub cloned_from: Option<AgentId>,
        pub presence: String,
        pub presence_since: Timestamp,
        /// Why its presence last changed.
        pub cause: Option<String>,
        /// The fingerprint of its key, in hexadecimal.
        pub key: String,
        pub version: String,
        pub token_id: Option<TokenId>,
        pub labels: Labels,
        pub created_at: Timestamp,
        pub decided_at: Option<Timestamp>,
        pub decided_by: Option<String>,
        pub decision_reason: Option<String>,
    }
}

/// An agent with the facts of its last registration and its events.
#[derive(Debug, Clone, Serialize)]
pub struct AgentDetail {
    #[serde(flatten)]
    pub agent: AgentRecord,
    pub capabilities: Vec<String>,
    pub facts: Value,
    /// When its key last came from another machine than before.
    pub machine_changed_at: Option<Timestamp>,
    pub events: Vec<EventRecord>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct EventRecord {
        pub id: i64,
        pub at: Timestamp,
        pub kind: String,
        pub from_status: Option<String>,
        pub to_status: Option<String>,
        pub actor: Option<String>,
        pub reason: Option<String>,
        /// The address that the agent came from, of registrations, connections and clones.
        pub address: Option<IpAddr>,
        pub db_user: String,
    }
}

/// A decision about an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The mode is required if the host has an active agent.
    Approve(Option<ApprovalMode>),
    Reject,
    Revoke,
    Reopen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalMode {
    /// It is the same machine, reinstalled. Its old agent is revoked.
    Replace,
    /// It is another machine and gets a host record of its own.
    NewHost,
}

impl Store {
    /// Pending agents first, then by hostname.
    pub async fn agents_list(
        &self,
        filter: &AgentFilter,
        limit: u32,
    ) -> Result<Page<AgentRecord>, StoreError> {
        let sql = format!(
            "-- agents_list\n{SELECT}
             WHERE ($1::text IS NULL OR a.status = $1) AND shown.labels @> $2
               AND ($3::text IS NULL OR shown.hostname = $3)
               AND ($4::uuid IS NULL OR a.host_id = $4)
               AND ($5::uuid IS NULL OR a.token_id = $5)
             ORDER BY a.status <> 'pending', shown.hostname, a.created_at, a.id LIMIT $6"
        );
        let status = filter.status.map(AgentStatus::as_str);
        let (host, token) = (filter.host.map(|id| id.0), filter.token.map(|id| id.0));
        let params = [
            (&status as _, Type::TEXT),
            (&Json(&filter.labels) as _, Type::JSONB),
            (&filter.hostname as _, Type::TEXT),
            (&host as _, Type::UUID),
            (&token as _, Type::UUID),
        ];
        self.read_page(
            "agents_list",
            Bulkhead::Auth,
            &sql,
            &params,
            limit,
            AgentRecord::from_row,
        )
        .await
    }

    /// Agents that registered with the token: those that wait, then the newest. They are chosen before anything else is
    /// read, because a token may have registered a whole fleet.
    pub(crate) async fn agents_of_token(
        &self,
        token: TokenId,
        limit: i64,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let sql = format!(
            "-- agents_of_token\n{SELECT}
             WHERE a.id = ANY (ARRAY(SELECT id FROM agents WHERE token_id = $1
                                      ORDER BY status <> 'pending', created_at DESC, id LIMIT $2))
             ORDER BY a.status <> 'pending', a.created_at DESC, a.id"
        );
        let params = [(&token.0 as _, Type::UUID), (&limit as _, Type::INT8)];
        let rows = self.read("agents_of_token", Bulkhead::Auth, &sql, &params);
        rows.await?.iter().map(AgentRecord::from_row).collect()
    }

    /// Agents that `name` may mean: a prefix of the id (at least 4 characters), a prefix of the
    /// key's fingerprint (at least 8), or a hostname.
    pub async fn agents_find(
        &self,
        name: &str,
        limit: u32,
    ) -> Result<Page<AgentRecord>, StoreError> {
        let sql = format!(
            "-- agents_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(a.id::text, lower($1))
                OR length($1) >= 8 AND starts_with(encode(a.key, 'hex'), lower($1))
                OR shown.hostname = $1
             ORDER BY shown.hostname, a.created_at, a.id LIMIT $2"
        );
        let params = [(&name as _, Type::TEXT)];
        self.read_page(
            "agents_find",
            Bulkhead::Auth,
            &sql,
            &params,
            limit,
            AgentRecord::from_row,
        )
        .await
    }

    pub async fn agent_show(&self, agent: AgentId) -> Result<Option<AgentDetail>, StoreError> {
        self.run(
            "agent_show",
            Bulkhead::Auth,
            async |tx| match agent_show_row(&tx, agent).await? {
                Some(row) => Ok(Some(AgentDetail {
                    agent: AgentRecord::from_row(&row)?,
                    capabilities: row.try_get("capabilities")?,
                    facts: row.try_get("facts")?,
                    machine_changed_at: row.try_get("machine_changed_at")?,
                    events: agent_show_events(&tx, agent).await?,
                })),
                None => Ok(None),
            },
        )
        .await
    }

    /// Applies a decision. Returns the agent after it.
    pub async fn agent_decide(
        &self,
        agent: AgentId,
        decision: Decision,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<AgentRecord, StoreError> {
        self.run("agent_decide", Bulkhead::Auth, async |tx| {
            agent_decide_call(&tx, agent, decision, actor, reason).await?;
            let sql = format!("-- agent_decide\n{SELECT} WHERE a.id = $1");
            let row = tx.query_one(&sql, &[(&agent.0, Type::UUID)]).await?;
            AgentRecord::from_row(&row)
        })
        .await
    }
}

async fn agent_show_row(tx: &Tx, agent: AgentId) -> Result<Option<Row>, StoreError> {
    let sql = format!(
        "-- agent_show
        SELECT record.*, detail.capabilities, detail.facts, detail.machine_changed_at
          FROM ({SELECT} WHERE a.id = $1) record JOIN agents detail ON detail.id = record.id"
    );
    tx.query_opt(&sql, &[(&agent.0, Type::UUID)]).await
}

/// The newest events, oldest first.
async fn agent_show_events(tx: &Tx, agent: AgentId) -> Result<Vec<EventRecord>, StoreError> {
    let sql = "-- agent_show
        SELECT * FROM (
            SELECT id, at, kind, from_status, to_status, actor, reason, address, db_user
              FROM agent_events WHERE agent_id = $1 ORDER BY id DESC LIMIT $2) newest
         ORDER BY id";
    let params = [
        (&agent.0 as _, Type::UUID),
        (&EVENTS_SHOWN as _, Type::INT8),
    ];
    let rows = tx.query(sql, &params).await?;
    rows.iter().map(EventRecord::from_row).collect()
}

async fn agent_decide_call(
    tx: &Tx,
    agent: AgentId,
    decision: Decision,
    actor: &str,
    reason: Option<&str>,
) -> Result<(), StoreError> {
    let (call, mode) = match decision {
        Decision::Approve(mode) => ("approve_agent($1, $2, $4, $3)", mode),
        Decision::Reject => ("reject_agent($1, $2, $3)", None),
        Decision::Revoke => ("revoke_agent($1, $2, $3)", None),
        Decision::Reopen => ("reopen_agent($1, $2, $3)", None),
    };
    let mode = mode.map(ApprovalMode::as_str);
    let params = [
        (&agent.0 as _, Type::UUID),
        (&actor as _, Type::TEXT),
        (&reason as _, Type::TEXT),
        (&mode as _, Type::TEXT),
    ];
    let sql = format!("-- agent_decide\nSELECT {call}");
    tx.execute(&sql, &params).await.map(drop)
}

impl ApprovalMode {
    fn as_str(self) -> &'static str {
        match self {
            ApprovalMode::Replace => "replace",
            ApprovalMode::NewHost => "new-host",
        }
    }
}
