//! Trust anchors as people see them: what is listed, who has confirmed it, and who would be locked out.
//!
//! Each active agent is one of three for an anchor: it has confirmed it; it would be *locked out*, because it says which certificates
//! it trusts and this one is not among them; or it is *unknown*, because it says nothing or has the system's roots alone.

use crate::prelude::*;

#[derive(Debug)]
pub struct NewAnchor<'a> {
    /// DER.
    pub certificate: &'a [u8],
    pub subject: &'a str,
    pub not_after: Timestamp,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct AnchorRecord {
        pub hash: String,
        pub subject: String,
        #[serde(skip)]
        pub certificate: Vec<u8>,
        pub not_after: Timestamp,
        pub added_at: Timestamp,
        pub added_by: String,
        pub retired_at: Option<Timestamp>,
        pub retired_by: Option<String>,
        /// Active agents that trust it.
        pub confirmed: i64,
        /// Active agents that would not reach a service that only this anchor verifies.
        pub locked_out: i64,
        /// Active agents of which that is not known.
        pub unknown: i64,
    }
}

record! {
    /// An agent that does not trust an anchor.
    #[derive(Debug, Clone, Serialize)]
    pub struct DistrustingAgent {
        pub agent_id: AgentId,
        pub hostname: String,
        pub online: bool,
        /// Why, as the agent says.
        pub problem: String,
    }
}

record! {
    /// What an agent trusts, as it said last.
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentTrust {
        pub anchors: Vec<String>,
        pub problem: String,
        pub since: Timestamp,
    }
}

impl Store {
    /// Adds an anchor. One that is listed already may be added again.
    pub async fn trust_add(&self, anchor: &NewAnchor<'_>, actor: &str) -> Result<()> {
        let sql = "-- trust_add\nSELECT add_trust_anchor($1, $2, $3, $4)";
        let params = params![anchor.certificate, anchor.subject, anchor.not_after, actor];
        let rows = self.call("trust_add", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Lets agents drop an anchor. Unless forced, it is refused while agents trust no other listed one.
    pub async fn trust_retire(&self, hash: &str, forced: bool, actor: &str) -> Result<()> {
        let sql = "-- trust_retire\nSELECT retire_trust_anchor($1, $2, $3)";
        let params = params![hash, forced, actor];
        let rows = self.call("trust_retire", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Those in use first, then the newest ones that are retired. What agents say is read once for all of them.
    pub async fn trust_anchors(&self) -> Result<Vec<AnchorRecord>> {
        let sql = "-- trust_anchors
            WITH said AS MATERIALIZED (
                SELECT t.anchors FROM agents a LEFT JOIN agent_trust t ON t.agent_id = a.id WHERE a.status = 'active'),
            total AS (SELECT count(*) FILTER (WHERE anchors <> '{}') AS saying, count(*) AS agents FROM said),
            confirmed AS (SELECT anchor AS hash, count(*) AS agents FROM said, unnest(said.anchors) anchor GROUP BY anchor)
            SELECT t.hash, t.subject, t.certificate, t.not_after, t.added_at, t.added_by, t.retired_at, t.retired_by,
                   coalesce(c.agents, 0) AS confirmed, total.saying - coalesce(c.agents, 0) AS locked_out,
                   total.agents - total.saying AS unknown
              FROM total, trust_anchors t LEFT JOIN confirmed c ON c.hash = t.hash
             ORDER BY t.retired_at IS NOT NULL, t.revision DESC LIMIT 20";
        self.read_all("trust_anchors", Auth, sql, &[]).await
    }

    /// The agents that a switch to this anchor would lock out, those that are online first.
    pub async fn trust_locked_out(&self, hash: &str, limit: u32) -> Result<Page<DistrustingAgent>> {
        let sql = "-- trust_locked_out
            SELECT t.agent_id, h.hostname, s.presence = 'online' AS online, t.problem
              FROM agent_trust t
              JOIN agents a ON a.id = t.agent_id AND a.status = 'active'
              JOIN hosts h ON h.id = a.host_id
              JOIN agent_state s ON s.agent_id = t.agent_id
             WHERE t.anchors <> '{}' AND NOT t.anchors @> ARRAY[$1]
             ORDER BY s.presence = 'online' DESC, h.hostname, t.agent_id LIMIT $2";
        let params = params![hash];
        self.read_page("trust_locked_out", Auth, sql, &params, limit)
            .await
    }

    /// None if the agent says nothing of what it trusts.
    pub async fn agent_trust(&self, agent: AgentId) -> Result<Option<AgentTrust>> {
        let sql =
            "-- agent_trust\nSELECT anchors, problem, since FROM agent_trust WHERE agent_id = $1";
        let params = params![agent.0];
        self.read_first("agent_trust", Auth, sql, &params).await
    }
}
