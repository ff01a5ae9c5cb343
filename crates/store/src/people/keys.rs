//! The keys of an agent as people see them, and the request for other ones.

use std::net::IpAddr;

use crate::{prelude::*, values::labels::Labels};

/// How many retired keys are shown, the newest first.
const SHOWN: i64 = 10;

/// The keys of an agent beside its present one.
#[derive(Debug, Clone, Serialize)]
pub struct AgentKeys {
    /// Since when the present one is its key.
    pub since: Timestamp,
    /// When a person asked for another one; `None`: nobody did, or it has changed since.
    pub change_asked_at: Option<Timestamp>,
    /// Announced, and not used yet.
    pub next: Option<AgentKey>,
    pub retired: Vec<AgentKey>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentKey {
        /// The fingerprint, in hexadecimal.
        pub key: String,
        /// When it was announced, or had become the agent's key.
        pub since: Timestamp,
        pub retired_at: Option<Timestamp>,
        /// When somebody tried to use it after that, and from where.
        pub used_at: Option<Timestamp>,
        pub used_from: Option<IpAddr>,
    }
}

/// Which agents are to change their keys.
#[derive(Debug, Clone, Default)]
pub struct KeyChange {
    pub agent: Option<AgentId>,
    /// Labels that the agent's host must all have.
    pub selector: Labels,
    /// The share of them, in percent: always the same agents, and a larger share includes a smaller one.
    pub share: f64,
}

impl AgentKeys {
    pub(super) async fn of(tx: &Tx, agent: AgentId) -> Result<AgentKeys> {
        let present = "-- agent_show\nSELECT key_since, key_change_at FROM agents WHERE id = $1";
        let present = tx.query_one(present, &params![agent.0]).await?;
        let others = "-- agent_show
            SELECT encode(key, 'hex') AS key, since, retired_at, used_at, used_from FROM agent_keys
             WHERE agent_id = $1 ORDER BY retired_at DESC NULLS FIRST LIMIT $2";
        let others: Vec<AgentKey> = tx.query_all(others, &params![agent.0, SHOWN]).await?;
        let (next, retired): (Vec<_>, Vec<_>) = others
            .into_iter()
            .partition(|other| other.retired_at.is_none());
        Ok(AgentKeys {
            since: present.try_get("key_since")?,
            change_asked_at: present.try_get("key_change_at")?,
            next: next.into_iter().next(),
            retired,
        })
    }
}

impl Store {
    /// Asks active agents to change their keys. Returns how many.
    pub async fn agents_change_key(
        &self,
        change: &KeyChange,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<i64> {
        let sql = "-- agents_change_key
            WITH asked AS (
                UPDATE agents a SET key_change_at = clock_timestamp() FROM hosts h
                 WHERE h.id = a.host_id AND a.status = 'active' AND ($1::uuid IS NULL OR a.id = $1)
                   AND h.labels @> $2 AND h.retired_at IS NULL AND rollout_place(a.id, 0) < $3
                RETURNING a.id),
            noted AS (
                INSERT INTO agent_events (agent_id, kind, actor, reason)
                SELECT id, 'key change asked', left($4, 255), left($5, 1000) FROM asked)
            SELECT count(*) FROM asked";
        let place = (change.share.clamp(0.0, 100.0) * 10_000.0).round();
        let agent = change.agent.map(|agent| agent.0);
        let params = params![agent, Json(&change.selector), place, actor, reason];
        self.run_value("agents_change_key", Auth, sql, &params)
            .await
    }
}
