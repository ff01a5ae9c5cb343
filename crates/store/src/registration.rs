//! The steps of a registration, each one statement, inside one transaction that
//! the service's `enrol` composes.
//!
//! Locks come first and in one order: the client's key, then the machine's
//! identifiers, then the token's row. So registrations of one key, and of one
//! machine, are serialised over all instances.

use std::collections::HashSet;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use crate::error::StoreError;
use crate::facts::{AgentFacts, HostFacts, IdentifierKind, Identifiers};
use crate::ids::{AgentId, HostId, TokenId};
use crate::pool::{Bulkhead, Store};
use crate::status::AgentStatus;
use crate::tx::Tx;

/// A machine's agent, as a registration finds it.
#[derive(Clone, Debug)]
pub struct KnownAgent {
    pub id: AgentId,
    pub host_id: HostId,
    pub status: AgentStatus,
    pub conflict_with: Option<AgentId>,
    pub online: bool,
}

/// A token, locked until the transaction ends.
#[derive(Clone, Debug)]
pub struct TokenRow {
    pub id: TokenId,
    pub label: String,
    pub state: TokenState,
    pub auto_approve: bool,
    pub allow_reinstall: bool,
    pub labels: Value,
}

/// What a token is good for now; what it is no longer good for says since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenState {
    Active,
    Expired { at: Timestamp },
    Exhausted { at: Option<Timestamp> },
    Revoked { at: Timestamp },
}

/// The host record that a set of facts belongs to, and its active agent.
#[derive(Clone, Debug)]
pub struct HostMatch {
    pub id: HostId,
    pub incumbent: Option<Incumbent>,
}

#[derive(Clone, Debug)]
pub struct Incumbent {
    pub id: AgentId,
    /// `None` while it is online.
    pub offline_for: Option<Duration>,
}

/// Why and how a new agent begins.
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
}

/// What is known of a caller before any lock is taken.
#[derive(Clone, Debug)]
pub struct Look {
    pub key_known: bool,
    pub token: Option<TokenState>,
}

impl Store {
    /// One cheap read, so that strangers cost no transaction.
    pub async fn registration_look(
        &self,
        key: &[u8; 32],
        token: Option<&[u8; 32]>,
    ) -> Result<Look, StoreError> {
        let sql = "-- registration_look
            SELECT EXISTS (SELECT FROM agents WHERE key = $1) AS key_known, token.*
              FROM (SELECT) one LEFT JOIN (
                SELECT expires_at, revoked_at, last_used_at, uses >= max_uses AS used_up, now() AS now
                  FROM enrolment_tokens WHERE hash = $2) token ON true";
        let token = token.map(<[u8; 32]>::as_slice);
        let params = [
            (&key.as_slice() as _, Type::BYTEA),
            (&token as _, Type::BYTEA),
        ];
        let rows = self
            .read("registration_look", Bulkhead::Auth, sql, &params)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Look {
                key_known: false,
                token: None,
            });
        };
        let token = match row.try_get::<_, Option<Timestamp>>("now")? {
            Some(_) => Some(TokenState::from_row(row)?),
            None => None,
        };
        Ok(Look {
            key_known: row.try_get("key_known")?,
            token,
        })
    }

    /// The statuses of those of `agents` that exist.
    pub async fn agents_statuses(
        &self,
        agents: &[AgentId],
    ) -> Result<Vec<(AgentId, AgentStatus)>, StoreError> {
        let sql = "-- agents_statuses\nSELECT id, status FROM agents WHERE id = ANY ($1)";
        let ids: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let rows = self
            .read(
                "agents_statuses",
                Bulkhead::Watch,
                sql,
                &[(&ids, Type::UUID_ARRAY)],
            )
            .await?;
        let read = |row: &Row| {
            Ok((
                AgentId(row.try_get("id")?),
                AgentStatus::from_column(row.try_get("status")?),
            ))
        };
        rows.iter().map(read).collect()
    }

    /// Approves the conflicts that a token with `allow_reinstall` admits: the
    /// machine's active agent has been offline for `quiet`. One a machine: the
    /// newly approved then has its own time to connect. Any number of instances
    /// may do so at once.
    pub async fn reinstalls_admit(&self, quiet: Duration) -> Result<Vec<AgentId>, StoreError> {
        let sql = "-- reinstalls_admit
            SELECT a.id, a.host_id, t.id AS token_id
              FROM agents a
              JOIN enrolment_tokens t ON t.id = a.token_id
              JOIN agents old ON old.host_id = a.host_id AND old.status = 'active'
              JOIN agent_state s ON s.agent_id = old.id
             WHERE a.status = 'pending' AND a.pending_reason = 'conflict'
               AND t.allow_reinstall AND t.auto_approve AND t.revoked_at IS NULL
               AND s.presence = 'offline' AND s.presence_since <= now() - make_interval(secs => $1)
             ORDER BY a.id LIMIT 100 FOR UPDATE OF a, old SKIP LOCKED";
        let seconds = quiet.as_secs_f64();
        self.run("reinstalls_admit", Bulkhead::Watch, |tx| async move {
            let mut hosts: HashSet<Uuid> = HashSet::new();
            let mut admitted = Vec::new();
            for row in tx.query(sql, &[(&seconds, Type::FLOAT8)]).await? {
                let (agent, token) = (
                    AgentId(row.try_get("id")?),
                    TokenId(row.try_get("token_id")?),
                );
                if hosts.insert(row.try_get("host_id")?) {
                    tx.agent_approve(agent, &format!("token {token}"), Some("replace"))
                        .await?;
                    admitted.push(agent);
                }
            }
            Ok(admitted)
        })
        .await
    }

    /// An agent's status, or `None` when it was deleted.
    pub async fn agent_status(&self, agent: AgentId) -> Result<Option<AgentStatus>, StoreError> {
        let sql = "-- agent_status\nSELECT status FROM agents WHERE id = $1";
        let rows = self
            .read(
                "agent_status",
                Bulkhead::Auth,
                sql,
                &[(&agent.0, Type::UUID)],
            )
            .await?;
        let status = rows
            .first()
            .map(|row| row.try_get::<_, String>("status"))
            .transpose()?;
        Ok(status.map(|text| AgentStatus::from_column(&text)))
    }
}

impl Tx {
    /// Serialises this transaction with all others about these keys and this machine.
    pub async fn registration_lock(
        &self,
        keys: &[&[u8; 32]],
        machine: &Identifiers,
    ) -> Result<(), StoreError> {
        let mut keys: Vec<i64> = keys.iter().map(|key| lock_id("key", &key[..])).collect();
        keys.sort_unstable();
        let mut identifiers: Vec<i64> = machine
            .iter()
            .flat_map(|(kind, values)| {
                values
                    .iter()
                    .map(|value| lock_id(kind.as_str(), value.as_bytes()))
            })
            .collect();
        identifiers.sort_unstable();
        keys.extend(identifiers);
        let sql = "-- registration_lock
            SELECT pg_advisory_xact_lock(lock) FROM unnest($1::bigint[]) AS locks(lock)";
        self.execute(sql, &[(&keys, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    pub async fn agent_by_key(&self, key: &[u8; 32]) -> Result<Option<KnownAgent>, StoreError> {
        let sql = "-- agent_by_key
            SELECT id, host_id, status, conflict_with, presence = 'online' AS online
              FROM agents JOIN agent_state ON agent_id = id
             WHERE key = $1 FOR UPDATE OF agents";
        let row = self
            .query_opt(sql, &[(&key.as_slice(), Type::BYTEA)])
            .await?;
        row.map(|row| KnownAgent::from_row(&row)).transpose()
    }

    pub async fn token_lock(&self, hash: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        let sql = "-- token_lock
            SELECT id, label, auto_approve, allow_reinstall, labels, expires_at, revoked_at, last_used_at,
                   uses >= max_uses AS used_up, now() AS now
              FROM enrolment_tokens WHERE hash = $1 FOR UPDATE";
        let row = self
            .query_opt(sql, &[(&hash.as_slice(), Type::BYTEA)])
            .await?;
        row.map(|row| TokenRow::from_row(&row)).transpose()
    }

    pub async fn token_spend(&self, token: TokenId) -> Result<(), StoreError> {
        let sql = "-- token_spend
            UPDATE enrolment_tokens SET uses = uses + 1, last_used_at = now() WHERE id = $1";
        self.execute(sql, &[(&token.0, Type::UUID)]).await?;
        Ok(())
    }

    /// The host that these identifiers belong to. Kinds are tried from the
    /// strongest: a host that carries a stronger kind of ours, with another
    /// value, is another machine. Of several, one with an active agent comes
    /// first, because then a person must look.
    pub async fn host_match(&self, machine: &Identifiers) -> Result<Option<HostMatch>, StoreError> {
        let mut stronger: Vec<&str> = Vec::new();
        for kind in IdentifierKind::STRONGEST_FIRST {
            let Some(values) = machine.get(&kind) else {
                continue;
            };
            if let Some(found) = self.host_match_by(kind, values, &stronger).await? {
                return Ok(Some(found));
            }
            stronger.push(kind.as_str());
        }
        Ok(None)
    }

    async fn host_match_by(
        &self,
        kind: IdentifierKind,
        values: &[String],
        stronger: &[&str],
    ) -> Result<Option<HostMatch>, StoreError> {
        let sql = "-- host_match
            SELECT h.id AS host_id, a.id AS agent_id, s.presence = 'online' AS online,
                   extract(epoch FROM now() - s.presence_since)::float8 AS seconds
              FROM host_identifiers i
              JOIN hosts h ON h.id = i.host_id AND h.retired_at IS NULL
              LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
              LEFT JOIN agent_state s ON s.agent_id = a.id
             WHERE i.kind = $1 AND i.value = ANY ($2)
               AND NOT EXISTS (SELECT FROM host_identifiers o WHERE o.host_id = h.id AND o.kind = ANY ($3))
             ORDER BY a.id IS NULL, h.created_at, h.id LIMIT 1";
        let params = [
            (&kind.as_str() as _, Type::TEXT),
            (&values as _, Type::TEXT_ARRAY),
            (&stronger as _, Type::TEXT_ARRAY),
        ];
        let row = self.query_opt(sql, &params).await?;
        row.map(|row| HostMatch::from_row(&row)).transpose()
    }

    /// A host's active agent, seen from a registration on that host.
    pub async fn host_incumbent(&self, host: HostId) -> Result<Option<Incumbent>, StoreError> {
        let sql = "-- host_incumbent
            SELECT a.host_id, a.id AS agent_id, s.presence = 'online' AS online,
                   extract(epoch FROM now() - s.presence_since)::float8 AS seconds
              FROM agents a JOIN agent_state s ON s.agent_id = a.id
             WHERE a.host_id = $1 AND a.status = 'active'";
        let row = self.query_opt(sql, &[(&host.0, Type::UUID)]).await?;
        let found = row.map(|row| HostMatch::from_row(&row)).transpose()?;
        Ok(found.and_then(|found| found.incumbent))
    }

    pub async fn host_identifiers(&self, host: HostId) -> Result<Identifiers, StoreError> {
        let sql =
            "-- host_identifiers\nSELECT kind, value FROM host_identifiers WHERE host_id = $1";
        let mut identifiers = Identifiers::new();
        for row in self.query(sql, &[(&host.0, Type::UUID)]).await? {
            let kind: String = row.try_get("kind")?;
            let known = IdentifierKind::STRONGEST_FIRST
                .into_iter()
                .find(|known| known.as_str() == kind);
            if let Some(kind) = known {
                identifiers
                    .entry(kind)
                    .or_default()
                    .push(row.try_get("value")?);
            }
        }
        Ok(identifiers)
    }

    pub async fn host_insert(&self, facts: &HostFacts) -> Result<HostId, StoreError> {
        let sql = "-- host_insert
            INSERT INTO hosts (hostname, os, os_version, arch, kernel_version, mac_addresses, ip_addresses,
                               boot_id, cpu_count, memory_total_bytes)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id";
        let row = self.query_one(sql, &fact_params(facts)).await?;
        let host = HostId(row.try_get("id")?);
        self.host_identifiers_add(host, &facts.identifiers).await?;
        Ok(host)
    }

    /// What the agent says now replaces what it said before; identifiers are only added.
    pub async fn host_refresh(&self, host: HostId, facts: &HostFacts) -> Result<(), StoreError> {
        let sql = "-- host_refresh
            UPDATE hosts
               SET hostname = $1, os = $2, os_version = $3, arch = $4, kernel_version = $5, mac_addresses = $6,
                   ip_addresses = $7, boot_id = $8, cpu_count = $9, memory_total_bytes = $10, facts_at = now()
             WHERE id = $11";
        let mut params = fact_params(facts).to_vec();
        params.push((&host.0, Type::UUID));
        self.execute(sql, &params).await?;
        self.host_identifiers_add(host, &facts.identifiers).await
    }

    async fn host_identifiers_add(
        &self,
        host: HostId,
        machine: &Identifiers,
    ) -> Result<(), StoreError> {
        let pairs = || {
            machine
                .iter()
                .flat_map(|(kind, values)| values.iter().map(move |value| (kind.as_str(), value)))
        };
        let kinds: Vec<&str> = pairs().map(|(kind, _)| kind).collect();
        let values: Vec<&String> = pairs().map(|(_, value)| value).collect();
        let sql = "-- host_identifiers_add
            INSERT INTO host_identifiers (host_id, kind, value)
            SELECT $1, kind, value FROM unnest($2::text[], $3::text[]) AS given(kind, value)
            ON CONFLICT DO NOTHING";
        let params = [
            (&host.0 as _, Type::UUID),
            (&kinds as _, Type::TEXT_ARRAY),
            (&values as _, Type::TEXT_ARRAY),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }

    pub async fn host_label(&self, host: HostId, labels: &Value) -> Result<(), StoreError> {
        let sql = "-- host_label
            UPDATE hosts SET labels = labels || $2 WHERE id = $1 AND NOT labels @> $2";
        self.execute(sql, &[(&host.0, Type::UUID), (labels, Type::JSONB)])
            .await?;
        Ok(())
    }

    /// The trigger adds the agent's state and its first event.
    pub async fn agent_insert(&self, new: &NewAgent<'_>) -> Result<AgentId, StoreError> {
        let sql = "-- agent_insert
            INSERT INTO agents (key, host_id, status, pending_reason, conflict_with, cloned_from, token_id,
                                decided_by, decided_at, version, capabilities, facts)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text, CASE WHEN $8::text IS NULL THEN NULL ELSE now() END,
                    $9, $10, $11)
            RETURNING id";
        let (conflict, clone) = (
            new.conflict_with.map(|id| id.0),
            new.cloned_from.map(|id| id.0),
        );
        let token = new.token_id.map(|id| id.0);
        let params = [
            (&new.key.as_slice() as _, Type::BYTEA),
            (&new.host_id.0 as _, Type::UUID),
            (&new.status.as_str() as _, Type::TEXT),
            (&new.pending_reason as _, Type::TEXT),
            (&conflict as _, Type::UUID),
            (&clone as _, Type::UUID),
            (&token as _, Type::UUID),
            (&new.decided_by as _, Type::TEXT),
            (&new.agent.version as _, Type::TEXT),
            (&new.agent.capabilities as _, Type::TEXT_ARRAY),
            (&Json(new.facts) as _, Type::JSONB),
        ];
        Ok(AgentId(self.query_one(sql, &params).await?.try_get("id")?))
    }

    pub async fn agent_refresh(
        &self,
        id: AgentId,
        agent: &AgentFacts,
        facts: &HostFacts,
    ) -> Result<(), StoreError> {
        let sql = "-- agent_refresh
            UPDATE agents SET version = $2, capabilities = $3, facts = $4 WHERE id = $1";
        let params = [
            (&id.0 as _, Type::UUID),
            (&agent.version as _, Type::TEXT),
            (&agent.capabilities as _, Type::TEXT_ARRAY),
            (&Json(facts) as _, Type::JSONB),
        ];
        self.execute(sql, &params).await?;
        Ok(())
    }

    /// `mode` says what becomes of a machine's active agent: `replace` or `new-host`.
    pub async fn agent_approve(
        &self,
        agent: AgentId,
        actor: &str,
        mode: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql = "-- agent_approve\nSELECT approve_agent($1, $2, $3)";
        self.execute(
            sql,
            &[
                (&agent.0, Type::UUID),
                (&actor, Type::TEXT),
                (&mode, Type::TEXT),
            ],
        )
        .await?;
        Ok(())
    }

    pub async fn agent_revoke(
        &self,
        agent: AgentId,
        actor: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let sql = "-- agent_revoke\nSELECT revoke_agent($1, $2, $3)";
        self.execute(
            sql,
            &[
                (&agent.0, Type::UUID),
                (&actor, Type::TEXT),
                (&reason, Type::TEXT),
            ],
        )
        .await?;
        Ok(())
    }

    /// How many clones of `origin` wait for a decision.
    pub async fn clones_pending(&self, origin: AgentId) -> Result<i64, StoreError> {
        let sql = "-- clones_pending
            SELECT count(*) AS pending FROM agents WHERE cloned_from = $1 AND status = 'pending'";
        Ok(self
            .query_one(sql, &[(&origin.0, Type::UUID)])
            .await?
            .try_get("pending")?)
    }
}

fn fact_params(facts: &HostFacts) -> [crate::tx::Param<'_>; 10] {
    [
        (&facts.hostname, Type::TEXT),
        (&facts.os, Type::TEXT),
        (&facts.os_version, Type::TEXT),
        (&facts.arch, Type::TEXT),
        (&facts.kernel_version, Type::TEXT),
        (&facts.mac_addresses, Type::TEXT_ARRAY),
        (&facts.ip_addresses, Type::TEXT_ARRAY),
        (&facts.boot_id, Type::TEXT),
        (&facts.cpu_count, Type::INT8),
        (&facts.memory_total_bytes, Type::INT8),
    ]
}

/// 64 bits of SHA-256: far from the few constants in `locks`, and from each other.
fn lock_id(domain: &str, value: &[u8]) -> i64 {
    let hash = digest(&SHA256, &[domain.as_bytes(), b"\0", value].concat());
    let mut id = [0; 8];
    id.copy_from_slice(&hash.as_ref()[..8]);
    i64::from_be_bytes(id)
}

impl KnownAgent {
    fn from_row(row: &Row) -> Result<KnownAgent, StoreError> {
        Ok(KnownAgent {
            id: AgentId(row.try_get("id")?),
            host_id: HostId(row.try_get("host_id")?),
            status: AgentStatus::from_column(row.try_get("status")?),
            conflict_with: row
                .try_get::<_, Option<Uuid>>("conflict_with")?
                .map(AgentId),
            online: row.try_get("online")?,
        })
    }
}

impl TokenRow {
    fn from_row(row: &Row) -> Result<TokenRow, StoreError> {
        Ok(TokenRow {
            id: TokenId(row.try_get("id")?),
            label: row.try_get("label")?,
            state: TokenState::from_row(row)?,
            auto_approve: row.try_get("auto_approve")?,
            allow_reinstall: row.try_get("allow_reinstall")?,
            labels: row.try_get("labels")?,
        })
    }
}

impl TokenState {
    fn from_row(row: &Row) -> Result<TokenState, StoreError> {
        let now: Timestamp = row.try_get("now")?;
        let revoked: Option<Timestamp> = row.try_get("revoked_at")?;
        let expires: Option<Timestamp> = row.try_get("expires_at")?;
        if let Some(at) = revoked {
            return Ok(TokenState::Revoked { at });
        }
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Ok(TokenState::Expired { at });
        }
        if row.try_get("used_up")? {
            return Ok(TokenState::Exhausted {
                at: row.try_get("last_used_at")?,
            });
        }
        Ok(TokenState::Active)
    }
}

impl HostMatch {
    fn from_row(row: &Row) -> Result<HostMatch, StoreError> {
        let incumbent = match row.try_get::<_, Option<Uuid>>("agent_id")? {
            None => None,
            Some(id) => Some(Incumbent {
                id: AgentId(id),
                offline_for: offline_for(row)?,
            }),
        };
        Ok(HostMatch {
            id: HostId(row.try_get("host_id")?),
            incumbent,
        })
    }
}

fn offline_for(row: &Row) -> Result<Option<Duration>, StoreError> {
    if row.try_get("online")? {
        return Ok(None);
    }
    let seconds: f64 = row.try_get("seconds")?;
    Ok(Some(
        Duration::try_from_secs_f64(seconds).unwrap_or_default(),
    ))
}
