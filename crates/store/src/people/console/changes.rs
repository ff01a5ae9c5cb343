//! What people change through the console, by the functions of the web role.
//!
//! Decisions about single agents are `Store::agent_decide`, the same as the admin commands'.

use std::time::Duration;

use crate::{
    prelude::*,
    values::labels::{LabelChange, Labels},
};

/// One statement retires at most this many hosts.
const EXPIRE_STEP: i32 = 500;

/// A new token. It never approves agents by itself: the web role may not create such tokens.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    pub label: String,
    pub max_uses: i32,
    /// Counted by the database's clock. `None`: it never expires.
    pub expires_in: Option<Duration>,
    pub labels: Labels,
}

impl Store {
    pub async fn console_token_add(
        &self,
        hash: &[u8; 32],
        request: &TokenRequest,
        actor: &str,
    ) -> Result<TokenId> {
        let sql = "-- console_token_add
            SELECT add_enrolment_token($1, $2, $3, $4, now() + make_interval(secs => $5), $6)";
        let seconds = request.expires_in.map(|life| life.as_secs_f64());
        let params = params![
            hash.as_slice(),
            request.label,
            actor,
            request.max_uses,
            seconds,
            Json(&request.labels)
        ];
        self.run_value("console_token_add", Auth, sql, &params)
            .await
    }

    /// Changes labels of many hosts. Returns how many changed.
    pub async fn console_hosts_label(
        &self,
        hosts: &[Uuid],
        change: &LabelChange,
        actor: &str,
    ) -> Result<i32> {
        let sql = "-- console_hosts_label\nSELECT label_hosts($1, $2, $3, $4)";
        let params = params![hosts, Json(&change.added), change.removed, actor];
        self.run_value("console_hosts_label", Auth, sql, &params)
            .await
    }

    /// Retires hosts. Returns how many agents were revoked or rejected.
    pub async fn console_hosts_retire(
        &self,
        hosts: &[Uuid],
        actor: &str,
        reason: Option<&str>,
    ) -> Result<i64> {
        let sql = "-- console_hosts_retire
            SELECT coalesce(sum(retire_host(host, $2, $3)), 0)::bigint FROM unnest($1::uuid[]) AS host";
        let params = params![hosts, actor, reason];
        self.run_value("console_hosts_retire", Auth, sql, &params)
            .await
    }

    /// Revokes the active agents of hosts. Returns how many.
    pub async fn console_hosts_revoke(
        &self,
        hosts: &[Uuid],
        actor: &str,
        reason: Option<&str>,
    ) -> Result<i64> {
        let sql = "-- console_hosts_revoke
            WITH chosen AS MATERIALIZED (
                SELECT id FROM agents WHERE host_id = ANY ($1) AND status = 'active' ORDER BY id),
            done AS MATERIALIZED (SELECT id, revoke_agent(id, $2, $3) FROM chosen)
            SELECT count(*) FROM done";
        let params = params![hosts, actor, reason];
        self.run_value("console_hosts_revoke", Auth, sql, &params)
            .await
    }

    /// What [`Self::hosts_expire`] would retire now: how many hosts, and the names of the first ones.
    pub async fn hosts_expirable(
        &self,
        offline_for: Duration,
        shown: i64,
    ) -> Result<(i64, Vec<String>)> {
        let sql = "-- hosts_expirable
            SELECT h.hostname, count(*) OVER () AS count FROM agent_state s
              JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
              JOIN hosts h ON h.id = a.host_id AND h.retired_at IS NULL
             WHERE s.presence = 'offline' AND s.presence_since < now() - make_interval(secs => $1)
             ORDER BY s.presence_since LIMIT $2";
        let params = params![offline_for.as_secs_f64(), shown];
        let rows = self.read("hosts_expirable", Auth, sql, &params).await?;
        let count = rows.first().map_or(Ok(0), |row| row.try_get("count"))?;
        let names = rows.iter().map(|row| row.try_get("hostname"));
        Ok((count, names.collect::<std::result::Result<_, _>>()?))
    }

    /// Retires all hosts whose active agent has been offline for this long, the longest first. Returns
    /// how many. Each step is committed, and ends within its time limit.
    pub async fn hosts_expire(&self, offline_for: Duration, actor: &str) -> Result<u64> {
        let sql = "-- hosts_expire\nSELECT expire_hosts(make_interval(secs => $1), $2, $3)";
        let params = params![offline_for.as_secs_f64(), actor, EXPIRE_STEP];
        let mut retired = 0;
        loop {
            let step: i32 = self.run_value("hosts_expire", Auth, sql, &params).await?;
            retired += u64::try_from(step).unwrap_or(0);
            if step < EXPIRE_STEP {
                return Ok(retired);
            }
        }
    }

    /// Adds a note to a host, of a person or of an agent.
    pub async fn console_note_add(
        &self,
        host: HostId,
        agent: Option<AgentId>,
        actor: &str,
        note: &str,
    ) -> Result<()> {
        let sql = "-- console_note_add\nSELECT add_host_note($1, $2, $3, $4)";
        let params = params![host.0, agent.map(|id| id.0), actor, note];
        self.call("console_note_add", Auth, sql, &params)
            .await
            .map(drop)
    }
}
