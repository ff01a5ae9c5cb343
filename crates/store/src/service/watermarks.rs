//! Watermarks and dead letters as they are committed, read without locks.
//!
//! **Invariant:** every number that is sent to an agent was covered by a commit that wrote WAL and did not stop
//! waiting for a synchronous standby. A plain read would break it: a row may be visible here although no standby
//! has it, because the wait of its commit was cancelled. So these reads are covered
//! (`Store::read_covered`). The other paths that return numbers write by themselves: an append locks or moves the agents'
//! rows, and the opening of a session moves its epoch.

use crate::{prelude::*, service::samples::Watermark};

impl Store {
    /// The committed watermarks of the active agents among `agents`.
    pub async fn watermarks(&self, agents: &[AgentId]) -> Result<Vec<Watermark>> {
        let sql = "-- watermarks
            SELECT s.agent_id, s.acked_seq FROM agent_state s
             WHERE s.agent_id = ANY ($1) AND (SELECT a.status FROM agents a WHERE a.id = s.agent_id) = 'active'";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = params![agents];
        let rows = self.read_covered("watermarks", Watch, sql, &params);
        rows.await?.iter().map(Watermark::from_row).collect()
    }

    /// Returns which of these numbers of agents are dead letters. Gaps do not overlap, so the nearest
    /// gap that begins at or below a number is the only one that may contain it.
    pub async fn dead_letters_confirm(
        &self,
        numbers: &[(AgentId, i64)],
    ) -> Result<Vec<(AgentId, i64)>> {
        let sql = "-- dead_letters_confirm
            SELECT n.agent_id, n.seq FROM unnest($1, $2) AS n (agent_id, seq)
             CROSS JOIN LATERAL (
                   SELECT kind, last_seq FROM metric_gaps g
                    WHERE g.agent_id = n.agent_id AND g.first_seq <= n.seq
                    ORDER BY g.first_seq DESC LIMIT 1) nearest
             WHERE nearest.kind = 'dead letter' AND nearest.last_seq >= n.seq";
        let (agents, seqs): (Vec<Uuid>, Vec<i64>) =
            numbers.iter().map(|(agent, seq)| (agent.0, *seq)).unzip();
        let params = params![agents, seqs];
        let rows = self.read_covered("dead_letters_confirm", Watch, sql, &params);
        let number = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.await?.iter().map(number).collect()
    }
}
