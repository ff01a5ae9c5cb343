//! Trust anchors as the service sees them: the list that agents are told of, and what they say they trust.

use crate::prelude::*;

/// A retired anchor is announced as long as so few were retired after it: an agent that has been away for longer keeps it.
const RETIRED_SHOWN: i64 = 64;

/// The certificates beyond the system's roots with which an agent verifies the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustReport {
    /// SHA-256 of each, in hexadecimal; each once, at most 16.
    pub anchors: Vec<String>,
    pub problem: String,
}

/// What agents are to trust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustList {
    /// It rises with each change. 0: nobody has ever added an anchor.
    pub version: i64,
    /// DER.
    pub certificates: Vec<Vec<u8>>,
    /// SHA-256 of the certificates that agents are to drop, in hexadecimal.
    pub retired: Vec<String>,
}

impl Store {
    /// The list, if it is newer than `version`.
    pub async fn trust_list(&self, version: i64) -> Result<Option<TrustList>> {
        let sql = "-- trust_list
            SELECT hash, certificate, revision, retired_at IS NOT NULL AS retired FROM trust_anchors
             WHERE $1 < (SELECT max(revision) FROM trust_anchors)
             ORDER BY retired_at IS NOT NULL, revision DESC LIMIT 8 + $2";
        let params = params![version, RETIRED_SHOWN];
        let rows = self.read("trust_list", Watch, sql, &params).await?;
        let mut list = TrustList::default();
        for row in &rows {
            list.version = list.version.max(row.try_get("revision")?);
            match row.try_get("retired")? {
                true => list.retired.push(row.try_get("hash")?),
                false => list.certificates.push(row.try_get("certificate")?),
            }
        }
        Ok((!rows.is_empty()).then_some(list))
    }

    /// Stores what agents say they trust, where it is new. One that says nothing takes no anchors.
    pub async fn trust_report(&self, reports: &[(AgentId, Option<TrustReport>)]) -> Result<()> {
        let sql = "-- trust_report
            WITH said AS (
                SELECT n.agent_id, n.anchors::text[] AS anchors, n.problem
                  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(agent_id, anchors, problem)
                  JOIN agents a ON a.id = n.agent_id),
            silent AS (
                DELETE FROM agent_trust t USING said n WHERE t.agent_id = n.agent_id AND n.anchors IS NULL)
            INSERT INTO agent_trust AS t (agent_id, anchors, problem)
            SELECT n.* FROM said n LEFT JOIN agent_trust o ON o.agent_id = n.agent_id
             WHERE n.anchors IS NOT NULL AND (o.anchors, o.problem) IS DISTINCT FROM (n.anchors, n.problem)
             ORDER BY n.agent_id
                ON CONFLICT (agent_id) DO UPDATE SET anchors = excluded.anchors, problem = excluded.problem, since = clock_timestamp()";
        let said = |report: &Option<TrustReport>| {
            let report = report.as_ref()?;
            Some(format!("{{{}}}", report.anchors.join(",")))
        };
        let problem = |report: &Option<TrustReport>| report.clone().map(|report| report.problem);
        let columns = Arrays::default()
            .column(reports, |(agent, _)| agent.0)
            .column(reports, |(_, report)| said(report))
            .column(reports, |(_, report)| problem(report));
        let params = columns.params();
        let rows = self.call("trust_report", Watch, sql, &params);
        rows.await.map(drop)
    }

    /// Which of these agents lack an anchor, or still have one that is retired.
    pub async fn trust_behind(&self, agents: &[AgentId]) -> Result<Vec<AgentId>> {
        let sql = "-- trust_behind
            WITH listed AS (
                SELECT coalesce(array_agg(hash) FILTER (WHERE retired_at IS NULL), '{}') AS wanted,
                       coalesce(array_agg(hash) FILTER (WHERE retired_at IS NOT NULL), '{}') AS retired FROM trust_anchors)
            SELECT t.agent_id FROM agent_trust t, listed l
             WHERE t.agent_id = ANY ($1) AND (NOT t.anchors @> l.wanted OR t.anchors && l.retired)";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = params![agents];
        let rows = self.read("trust_behind", Watch, sql, &params).await?;
        let agent = |row: &Row| Ok(row.try_get("agent_id")?);
        rows.iter().map(agent).collect()
    }
}
