//! The books of a host's agents: every acknowledged number is stored, rejected or in a gap.
//! For the last day the counters are also compared with the rows.

use crate::{prelude::*, service::samples::GapKind};

/// The newest agents whose books are shown, and the newest gaps of each.
const AGENTS_SHOWN: i64 = 20;
const GAPS_SHOWN: i64 = 20;

/// The books of one agent: sent = stored + rejected + gaps + moved.
#[derive(Debug, Clone, Serialize)]
pub struct AgentBooks {
    pub agent_id: AgentId,
    pub sent: i64,
    pub stored: i64,
    pub rejected: i64,
    pub gaps: i64,
    /// Numbers that another cell has.
    pub moved: i64,
    /// Whether the counters add up, and the tables contain every number since the first one of
    /// the last day exactly once.
    pub balanced: bool,
    /// The newest gaps.
    pub missing: Vec<GapRecord>,
}

record! {
    /// Numbers without a sample, and why.
    #[derive(Debug, Clone, Serialize)]
    pub struct GapRecord {
        #[serde(skip)]
        pub agent_id: AgentId,
        pub first_seq: i64,
        pub last_seq: i64,
        pub kind: GapKind,
        pub reason: String,
        pub recorded_at: Timestamp,
    }
}

/// `day` finds the lowest number of the last day. `kept` counts from that number in all kept
/// samples, whatever their time, because numbers need not be in the order of times.
const BOOKS: &str = "-- host_books
    SELECT s.agent_id, s.acked_seq, s.stored_count, s.rejected_count, s.gap_count, s.moved_count,
           s.stored_count + s.rejected_count + s.gap_count + s.moved_count = s.acked_seq
           AND (day.first_seq IS NULL
                OR kept.samples = kept.numbers AND s.acked_seq - day.first_seq + 1 - kept.samples - gaps.numbers BETWEEN 0 AND s.moved_count) AS balanced
      FROM agents a
      JOIN agent_state s ON s.agent_id = a.id
     CROSS JOIN LATERAL (
           SELECT min(m.seq) AS first_seq FROM host_metrics m
            WHERE m.host_id = a.host_id AND m.agent_id = a.id AND m.sampled_at >= now() - interval '1 day'
              AND m.hour >= now() - interval '25 hours') day
     CROSS JOIN LATERAL (
           SELECT count(*) AS samples, count(DISTINCT m.seq) AS numbers FROM host_metrics m
            WHERE m.host_id = a.host_id AND m.agent_id = a.id AND m.seq >= day.first_seq) kept
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(g.last_seq - greatest(g.first_seq, day.first_seq) + 1), 0)::bigint AS numbers FROM metric_gaps g
            WHERE g.agent_id = a.id AND g.last_seq >= day.first_seq) gaps
     WHERE a.host_id = $1 AND s.acked_seq > 0
     ORDER BY a.created_at DESC, a.id LIMIT $2";

impl Store {
    /// The books of the host's newest agents that have reported.
    pub async fn host_books(&self, host: HostId) -> Result<Vec<AgentBooks>> {
        let params = params![host.0, AGENTS_SHOWN];
        let rows = self.read("host_books", Auth, BOOKS, &params);
        let mut books = Vec::new();
        for row in rows.await? {
            let agent = row.try_get("agent_id")?;
            books.push(AgentBooks::from_row(&row, self.gaps_newest(agent).await?)?);
        }
        Ok(books)
    }

    async fn gaps_newest(&self, agent: AgentId) -> Result<Vec<GapRecord>> {
        let sql = "-- host_books
            SELECT agent_id, first_seq, last_seq, kind, reason, recorded_at FROM metric_gaps
             WHERE agent_id = $1 ORDER BY first_seq DESC LIMIT $2";
        let params = params![agent.0, GAPS_SHOWN];
        self.read_all("host_books", Auth, sql, &params).await
    }
}

impl AgentBooks {
    fn from_row(row: &Row, missing: Vec<GapRecord>) -> Result<AgentBooks> {
        Ok(AgentBooks {
            agent_id: row.try_get("agent_id")?,
            sent: row.try_get("acked_seq")?,
            stored: row.try_get("stored_count")?,
            rejected: row.try_get("rejected_count")?,
            gaps: row.try_get("gap_count")?,
            moved: row.try_get("moved_count")?,
            balanced: row.try_get("balanced")?,
            missing,
        })
    }
}
