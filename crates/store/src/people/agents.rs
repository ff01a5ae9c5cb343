//! Agents for the admin commands: lists, details and decisions.
//!
//! Decisions call the SQL functions that the web application calls too, so there is one set
//! of rules and one record of decisions.

use std::net::IpAddr;

use serde_json::Value;

use crate::{
    people::{
        cells::{AgentMove, MOVES},
        keys::AgentKeys,
        rollouts::{OF_AGENT, RolloutAgent},
    },
    prelude::*,
    values::{
        event_kind::EventKind,
        key_prefix::KeyPrefix,
        labels::Labels,
        status::{AgentStatus, PendingReason, Presence, PresenceCause},
    },
};

/// The hostname is the one that the agent reported itself, because a pending agent may share
/// the host record of another. For the same reason the labels of a pending agent are those that
/// its host will have once the agent is admitted.
const SELECT: &str = "SELECT a.id, a.host_id, shown.hostname, a.status, a.pending_reason, a.conflict_with,
                a.cloned_from, CASE s.cause WHEN 'updating' THEN 'updating' ELSE s.presence END AS presence, s.presence_since, s.cause, encode(a.key, 'hex') AS key, a.version,
                a.token_id, shown.labels, a.created_at, a.decided_at, a.decided_by, a.decision_reason,
                a.status = 'pending' AND a.pending_reason IN ('approval', 'reopened') AND NOT EXISTS (
                    SELECT FROM agents o WHERE o.host_id = a.host_id AND o.id <> a.id AND o.status IN ('active', 'pending')) AS plain,
                CASE a.status WHEN 'pending' THEN agent_seen(a, (
                    SELECT i.id FROM agents i WHERE i.host_id = a.host_id AND i.status = 'active')) END AS seen
           FROM agents a
           JOIN agent_state s ON s.agent_id = a.id
           JOIN hosts h ON h.id = a.host_id
           LEFT JOIN enrolment_tokens t ON t.id = a.token_id AND a.status = 'pending'
          CROSS JOIN LATERAL (
                SELECT coalesce(nullif(a.facts ->> 'hostname', ''), h.hostname) AS hostname,
                       h.labels || coalesce(t.labels, '{}') AS labels) shown";

/// The newest events, oldest first.
const EVENTS: &str = "-- agent_show
    SELECT * FROM (
        SELECT id, at, kind, from_status, to_status, actor, reason, address, db_user
          FROM agent_events WHERE agent_id = $1 ORDER BY id DESC LIMIT $2) newest
     ORDER BY id";

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
    /// What its key's fingerprint begins with.
    pub key: Option<KeyPrefix>,
}

record! {
    /// A pending agent, to be approved with others.
    #[derive(Debug, Clone)]
    pub struct WaitingAgent {
        pub id: AgentId,
        pub hostname: String,
        pub key: String,
        /// Whether approval needs no choice: no other agent that is active or pending has its machine, and it is no copy.
        pub plain: bool,
        /// When it registered, or was reopened.
        pub since: Timestamp,
    }
}

record! {
    /// An agent with its presence and its host's labels.
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentRecord {
        pub id: AgentId,
        pub host_id: HostId,
        pub hostname: String,
        pub status: AgentStatus,
        pub pending_reason: Option<PendingReason>,
        pub conflict_with: Option<AgentId>,
        pub cloned_from: Option<AgentId>,
        pub presence: Presence,
        pub presence_since: Timestamp,
        /// Why its presence last changed.
        pub cause: Option<PresenceCause>,
        /// The fingerprint of its key, in hexadecimal.
        pub key: String,
        pub version: String,
        pub token_id: Option<TokenId>,
        pub labels: Labels,
        pub created_at: Timestamp,
        pub decided_at: Option<Timestamp>,
        pub decided_by: Option<String>,
        pub decision_reason: Option<String>,
        /// Whether it waits, and approval needs no choice.
        #[serde(skip)]
        pub plain: bool,
        /// While it waits: the hash of what a person decides by, for [`Store::agent_decide_seen`].
        #[serde(skip)]
        pub seen: Option<String>,
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
    pub keys: AgentKeys,
    /// How far it is with its update; none if it never said.
    pub update: Option<RolloutAgent>,
    /// To which cell it is told to move, or has moved.
    pub cell: Option<AgentMove>,
    pub events: Vec<EventRecord>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct EventRecord {
        pub id: i64,
        pub at: Timestamp,
        pub kind: EventKind,
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

text_enum! {
    pub enum ApprovalMode {
        /// It is the same machine, reinstalled. Its old agent is revoked.
        Replace = "replace",
        /// It is another machine and gets a host record of its own.
        NewHost = "new-host",
    }
}

impl Store {
    /// Pending agents first, then by hostname.
    pub async fn agents_list(&self, filter: &AgentFilter, limit: u32) -> Result<Page<AgentRecord>> {
        let sql = format!(
            "-- agents_list\n{SELECT}
             WHERE ($1::text IS NULL OR a.status = $1) AND shown.labels @> $2
               AND ($3::text IS NULL OR shown.hostname = $3)
               AND ($4::uuid IS NULL OR a.host_id = $4)
               AND ($5::uuid IS NULL OR a.token_id = $5)
               AND ($6::text IS NULL OR a.key BETWEEN decode($6, 'hex') AND decode($7, 'hex'))
             ORDER BY a.status <> 'pending', shown.hostname, a.created_at, a.id LIMIT $8"
        );
        let status = filter.status.map(AgentStatus::as_str);
        let (host, token) = (filter.host.map(|id| id.0), filter.token.map(|id| id.0));
        let (first, last) = filter.key.as_ref().map(KeyPrefix::range).unzip();
        let labels = Json(&filter.labels);
        let params = params![status, labels, filter.hostname, host, token, first, last];
        self.read_page("agents_list", Auth, &sql, &params, limit)
            .await
    }

    /// All agents that wait, as the filter says, at most `most`, and not since a later time than `until`.
    pub async fn agents_waiting(
        &self,
        filter: &AgentFilter,
        until: Option<Timestamp>,
        most: i64,
    ) -> Result<Vec<WaitingAgent>> {
        let sql = format!(
            "-- agents_waiting
            SELECT w.id, w.hostname, w.key, w.plain, coalesce(w.decided_at, w.created_at) AS since
              FROM ({SELECT} WHERE a.status = 'pending' AND shown.labels @> $1
                      AND ($2::uuid IS NULL OR a.token_id = $2)
                      AND ($3::text IS NULL OR a.key BETWEEN decode($3, 'hex') AND decode($4, 'hex'))) w
             WHERE $5::timestamptz IS NULL OR coalesce(w.decided_at, w.created_at) <= $5
             ORDER BY w.hostname, w.id LIMIT $6"
        );
        let (first, last) = filter.key.as_ref().map(KeyPrefix::range).unzip();
        let (labels, token) = (Json(&filter.labels), filter.token.map(|id| id.0));
        let params = params![labels, token, first, last, until, most];
        self.read_all("agents_waiting", Auth, &sql, &params).await
    }

    /// Approves pending agents without a choice, all or none. `seen` has the hash of each, where it was shown.
    pub async fn agents_approve(
        &self,
        agents: &[Uuid],
        seen: &[Option<String>],
        actor: &str,
        reason: Option<&str>,
    ) -> Result<()> {
        let sql = "-- agents_approve
            SELECT approve_agent(id, $3, NULL, $4, seen) FROM unnest($1, $2) AS picked(id, seen)";
        let params = params![agents, seen, actor, reason];
        self.call("agents_approve", Auth, sql, &params)
            .await
            .map(drop)
    }

    /// Agents that registered with the token: those that wait, then the newest. They are chosen before anything else is
    /// read, because a token may have registered a whole fleet.
    pub(crate) async fn agents_of_token(
        &self,
        token: TokenId,
        limit: i64,
    ) -> Result<Vec<AgentRecord>> {
        let sql = format!(
            "-- agents_of_token\n{SELECT}
             WHERE a.id = ANY (ARRAY(SELECT id FROM agents WHERE token_id = $1
                                      ORDER BY status <> 'pending', created_at DESC, id LIMIT $2))
             ORDER BY a.status <> 'pending', a.created_at DESC, a.id"
        );
        let params = params![token.0, limit];
        self.read_all("agents_of_token", Auth, &sql, &params).await
    }

    /// Agents that `name` may mean: a prefix of the id (at least 4 characters), a prefix of the
    /// key's fingerprint (at least 8), or a hostname.
    pub async fn agents_find(&self, name: &str, limit: u32) -> Result<Page<AgentRecord>> {
        let sql = format!(
            "-- agents_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(a.id::text, lower($1))
                OR length($1) >= 8 AND starts_with(encode(a.key, 'hex'), lower($1))
                OR shown.hostname = $1
             ORDER BY shown.hostname, a.created_at, a.id LIMIT $2"
        );
        let params = params![name];
        self.read_page("agents_find", Auth, &sql, &params, limit)
            .await
    }

    pub async fn agent_show(&self, agent: AgentId) -> Result<Option<AgentDetail>> {
        let sql = format!(
            "-- agent_show
            SELECT record.*, detail.capabilities, detail.facts, detail.machine_changed_at
              FROM ({SELECT} WHERE a.id = $1) record JOIN agents detail ON detail.id = record.id"
        );
        self.run("agent_show", Auth, async |tx| {
            let Some(row) = tx.query_opt(&sql, &params![agent.0]).await? else {
                return Ok(None);
            };
            let update = format!("-- agent_show{OF_AGENT}");
            let update = tx.query_first(&update, &params![agent.0]).await?;
            let cell = format!("-- agent_show{MOVES}");
            let cell = tx.query_first(&cell, &params![Some(agent.0)]).await?;
            let params = params![agent.0, EVENTS_SHOWN];
            Ok(Some(AgentDetail {
                agent: AgentRecord::from_row(&row)?,
                capabilities: row.try_get("capabilities")?,
                facts: row.try_get("facts")?,
                machine_changed_at: row.try_get("machine_changed_at")?,
                keys: AgentKeys::of(&tx, agent).await?,
                update,
                cell,
                events: tx.query_all(EVENTS, &params).await?,
            }))
        })
        .await
    }

    /// Applies a decision. Returns the agent after it.
    pub async fn agent_decide(
        &self,
        agent: AgentId,
        decision: Decision,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<AgentRecord> {
        self.agent_decide_seen(agent, decision, None, actor, reason)
            .await
    }

    /// Applies a decision by what was shown. An approval is refused if `seen` is not the agent's any more.
    pub async fn agent_decide_seen(
        &self,
        agent: AgentId,
        decision: Decision,
        seen: Option<&str>,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<AgentRecord> {
        let (call, mode) = match decision {
            Decision::Approve(mode) => ("approve_agent($1, $2, $4, $3, $5)", mode),
            Decision::Reject => ("reject_agent($1, $2, $3)", None),
            Decision::Revoke => ("revoke_agent($1, $2, $3)", None),
            Decision::Reopen => ("reopen_agent($1, $2, $3)", None),
        };
        let decide = format!("-- agent_decide\nSELECT {call}");
        let mode = mode.map(ApprovalMode::as_str);
        let params = params![agent.0, actor, reason, mode, seen];
        let show = format!("-- agent_decide\n{SELECT} WHERE a.id = $1");
        self.run("agent_decide", Auth, async |tx| {
            tx.execute(&decide, &params).await?;
            AgentRecord::from_row(&tx.query_one(&show, &params![agent.0]).await?)
        })
        .await
    }
}
