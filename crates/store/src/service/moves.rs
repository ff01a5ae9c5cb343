//! Moves to other cells as the service sees them: which of its agents are told to move, and what they answer.

use crate::prelude::*;

record! {
    /// A cell that people have named.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
    pub struct CellRecord {
        pub name: String,
        pub addresses: Vec<String>,
        /// DER.
        #[serde(skip)]
        pub certificates: Vec<Vec<u8>>,
        pub added_at: Timestamp,
        pub added_by: String,
    }
}

record! {
    /// An agent with a stream here that is told to move.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MoveAsked {
        pub agent_id: AgentId,
        pub cell: String,
    }
}

/// More are asked for at later passes.
const MOST: i64 = 10_000;

impl Store {
    pub async fn cells_list(&self) -> Result<Vec<CellRecord>> {
        let sql = "-- cells_list\nSELECT * FROM cells ORDER BY name";
        self.read_all("cells_list", Watch, sql, &[]).await
    }

    /// The agents of this instance that are told to move and have not. While nobody is, it reads an empty index. Sessions are
    /// looked up one by one: a join could begin with all sessions of the instance.
    pub async fn moves_open(&self, instance: Uuid) -> Result<Vec<MoveAsked>> {
        let sql = "-- moves_open
            SELECT m.agent_id, m.cell FROM agent_moves m
             WHERE m.moved_at IS NULL
               AND (SELECT s.instance_id FROM agent_state s WHERE s.agent_id = m.agent_id) = $1 LIMIT $2";
        let params = params![instance, MOST];
        self.read_all("moves_open", Watch, sql, &params).await
    }

    /// Where an agent is told to be, or has moved to. A registration asks, if anybody has been told to move.
    pub async fn move_of(&self, agent: AgentId) -> Result<Option<CellRecord>> {
        let sql = "-- move_of
            SELECT c.* FROM agent_moves m JOIN cells c ON c.name = m.cell WHERE m.agent_id = $1";
        self.read_first("move_of", Auth, sql, &params![agent.0])
            .await
    }

    /// Stores why agents do not move. An empty problem is over.
    pub async fn moves_problems(&self, said: &[(AgentId, String)]) -> Result<()> {
        let sql = "-- moves_problems
            UPDATE agent_moves m SET problem = n.problem, problem_at = now()
              FROM unnest($1::uuid[], $2::text[]) AS n(agent_id, problem)
             WHERE m.agent_id = n.agent_id AND m.problem <> n.problem";
        let columns = Arrays::default()
            .column(said, |(agent, _)| agent.0)
            .column(said, |(_, problem)| problem.clone());
        let params = columns.params();
        let rows = self.call("moves_problems", Watch, sql, &params);
        rows.await.map(drop)
    }
}
