//! Agents as people see them, and what people decide about them.
//!
//! Decisions go through the SQL functions that the web application calls too, so
//! that there is one set of rules and one record of who decided.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use crate::error::StoreError;
use crate::ids::{AgentId, HostId, TokenId};
use crate::page::Page;
use crate::pool::{Bulkhead, Store};
use crate::status::AgentStatus;
use crate::tx::Tx;

/// An agent's name is what it says itself: a waiting one may share another's host record.
const SELECT: &str = "SELECT a.id, a.host_id, named.hostname, a.status, a.pending_reason, a.conflict_with,
                a.cloned_from, s.presence, s.presence_since, s.cause, encode(a.key, 'hex') AS key, a.version,
                a.token_id, h.labels, a.created_at, a.decided_at, a.decided_by, a.decision_reason
           FROM agents a
           JOIN agent_state s ON s.agent_id = a.id
           JOIN hosts h ON h.id = a.host_id
          CROSS JOIN LATERAL (SELECT coalesce(nullif(a.facts ->> 'hostname', ''), h.hostname) AS hostname) named";
/// How many of an agent's events are shown with it: the newest.
const EVENTS_SHOWN: i64 = 100;

/// Which agents to list; the default is all.
#[derive(Debug, Clone, Default)]
pub struct AgentFilter {
    pub status: Option<AgentStatus>,
    /// Labels that the agent's host must bear, all of them.
    pub labels: BTreeMap<String, String>,
    pub hostname: Option<String>,
    pub host: Option<HostId>,
    pub token: Option<TokenId>,
}

/// An agent with its presence, and with its host's labels.
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
    /// Why its presence is what it is.
    pub cause: Option<String>,
    /// The key's fingerprint, in hexadecimal.
    pub key: String,
    pub version: String,
    pub token_id: Option<TokenId>,
    pub labels: Value,
    pub created_at: Timestamp,
    pub decided_at: Option<Timestamp>,
    pub decided_by: Option<String>,
    pub decision_reason: Option<String>,
}

/// An agent, what it last registered with, and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct AgentDetail {
    #[serde(flatten)]
    pub agent: AgentRecord,
    pub capabilities: Vec<String>,
    pub facts: Value,
    pub events: Vec<EventRecord>,
}

#[derive(Debug, Clone, Serialize)]
pub struct EventRecord {
    pub id: i64,
    pub at: Timestamp,
    pub kind: String,
    pub from_status: Option<String>,
    pub to_status: Option<String>,
    pub actor: Option<String>,
    pub reason: Option<String>,
    pub db_user: String,
}

/// What a person decides about an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// On a machine that has an active agent, the mode says what becomes of it.
    Approve(Option<ApprovalMode>),
    Reject,
    Revoke,
    Reopen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalMode {
    /// The same machine, reinstalled: its old agent is revoked.
    Replace,
    /// Another machine: it gets a host record of its own.
    NewHost,
}

impl Store {
    /// Removes events older than `retention`, some at a time.
    pub async fn events_prune(&self, retention: std::time::Duration) -> Result<u64, StoreError> {
        let sql = "-- events_prune
            DELETE FROM agent_events WHERE id IN (
                SELECT id FROM agent_events
                 WHERE at < now() - make_interval(secs => $1) ORDER BY at LIMIT 10000)";
        let seconds = retention.as_secs_f64();
        self.run("events_prune", Bulkhead::Watch, |tx| async move {
            tx.execute(sql, &[(&seconds, Type::FLOAT8)]).await
        })
        .await
    }

    /// Those who wait for a decision first, then by name.
    pub async fn agents_list(
        &self,
        filter: &AgentFilter,
        limit: u32,
    ) -> Result<Page<AgentRecord>, StoreError> {
        let sql = format!(
            "-- agents_list\n{SELECT}
             WHERE ($1::text IS NULL OR a.status = $1) AND h.labels @> $2
               AND ($3::text IS NULL OR named.hostname = $3)
               AND ($4::uuid IS NULL OR a.host_id = $4)
               AND ($5::uuid IS NULL OR a.token_id = $5)
             ORDER BY a.status <> 'pending', named.hostname, a.created_at, a.id LIMIT $6"
        );
        let status = filter.status.map(AgentStatus::as_str);
        let (host, token) = (filter.host.map(|id| id.0), filter.token.map(|id| id.0));
        let rows = Page::<AgentRecord>::limit(limit);
        let params = [
            (&status as _, Type::TEXT),
            (&Json(&filter.labels) as _, Type::JSONB),
            (&filter.hostname as _, Type::TEXT),
            (&host as _, Type::UUID),
            (&token as _, Type::UUID),
            (&rows as _, Type::INT8),
        ];
        let rows = self
            .read("agents_list", Bulkhead::Auth, &sql, &params)
            .await?;
        Page::from_rows(&rows, limit, AgentRecord::from_row)
    }

    /// Those that `name` may mean: an id, the beginning of one (4 characters or
    /// more) or of a key's fingerprint (8 or more), or a host's name.
    pub async fn agents_find(
        &self,
        name: &str,
        limit: u32,
    ) -> Result<Page<AgentRecord>, StoreError> {
        let sql = format!(
            "-- agents_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(a.id::text, lower($1))
                OR length($1) >= 8 AND starts_with(encode(a.key, 'hex'), lower($1))
                OR named.hostname = $1
             ORDER BY named.hostname, a.created_at, a.id LIMIT $2"
        );
        let rows = Page::<AgentRecord>::limit(limit);
        let params = [(&name as _, Type::TEXT), (&rows as _, Type::INT8)];
        let rows = self
            .read("agents_find", Bulkhead::Auth, &sql, &params)
            .await?;
        Page::from_rows(&rows, limit, AgentRecord::from_row)
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
                    events: agent_show_events(&tx, agent).await?,
                })),
                None => Ok(None),
            },
        )
        .await
    }

    /// Applies what a person decided, and says how the agent stands then.
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
        SELECT shown.*, told.capabilities, told.facts
          FROM ({SELECT} WHERE a.id = $1) shown JOIN agents told ON told.id = shown.id"
    );
    tx.query_opt(&sql, &[(&agent.0, Type::UUID)]).await
}

/// Oldest first.
async fn agent_show_events(tx: &Tx, agent: AgentId) -> Result<Vec<EventRecord>, StoreError> {
    let sql = "-- agent_show
        SELECT * FROM (
            SELECT id, at, kind, from_status, to_status, actor, reason, db_user
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
    let (agent, actor) = ((&agent.0 as _, Type::UUID), (&actor as _, Type::TEXT));
    let reason = (&reason as _, Type::TEXT);
    let sql = match decision {
        Decision::Approve(mode) => {
            let sql = "-- agent_decide\nSELECT approve_agent($1, $2, $3, $4)";
            let mode = mode.map(ApprovalMode::as_str);
            let mode = (&mode as _, Type::TEXT);
            tx.execute(sql, &[agent, actor, mode, reason]).await?;
            return Ok(());
        }
        Decision::Reject => "-- agent_decide\nSELECT reject_agent($1, $2, $3)",
        Decision::Revoke => "-- agent_decide\nSELECT revoke_agent($1, $2, $3)",
        Decision::Reopen => "-- agent_decide\nSELECT reopen_agent($1, $2, $3)",
    };
    tx.execute(sql, &[agent, actor, reason]).await?;
    Ok(())
}

impl ApprovalMode {
    fn as_str(self) -> &'static str {
        match self {
            ApprovalMode::Replace => "replace",
            ApprovalMode::NewHost => "new-host",
        }
    }
}

impl AgentRecord {
    fn from_row(row: &Row) -> Result<AgentRecord, StoreError> {
        let optional = |column: &str| row.try_get::<_, Option<Uuid>>(column);
        Ok(AgentRecord {
            id: AgentId(row.try_get("id")?),
            host_id: HostId(row.try_get("host_id")?),
            hostname: row.try_get("hostname")?,
            status: AgentStatus::from_column(row.try_get("status")?),
            pending_reason: row.try_get("pending_reason")?,
            conflict_with: optional("conflict_with")?.map(AgentId),
            cloned_from: optional("cloned_from")?.map(AgentId),
            presence: row.try_get("presence")?,
            presence_since: row.try_get("presence_since")?,
            cause: row.try_get("cause")?,
            key: row.try_get("key")?,
            version: row.try_get("version")?,
            token_id: optional("token_id")?.map(TokenId),
            labels: row.try_get("labels")?,
            created_at: row.try_get("created_at")?,
            decided_at: row.try_get("decided_at")?,
            decided_by: row.try_get("decided_by")?,
            decision_reason: row.try_get("decision_reason")?,
        })
    }
}

impl EventRecord {
    fn from_row(row: &Row) -> Result<EventRecord, StoreError> {
        Ok(EventRecord {
            id: row.try_get("id")?,
            at: row.try_get("at")?,
            kind: row.try_get("kind")?,
            from_status: row.try_get("from_status")?,
            to_status: row.try_get("to_status")?,
            actor: row.try_get("actor")?,
            reason: row.try_get("reason")?,
            db_user: row.try_get("db_user")?,
        })
    }
}
