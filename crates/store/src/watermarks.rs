//! Watermarks, read without a lock: what is committed for whom.

use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::StoreError;
use crate::ids::AgentId;
use crate::pool::{Bulkhead, Store};
use crate::samples::Watermark;

impl Store {
    /// The watermarks of those agents that are active: the others are told nothing.
    pub async fn watermarks(&self, agents: &[AgentId]) -> Result<Vec<Watermark>, StoreError> {
        let sql = "-- watermarks
            SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
             WHERE s.agent_id = ANY ($1) AND a.status = 'active'";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = [(&agents as _, Type::UUID_ARRAY)];
        let rows = self
            .read("watermarks", Bulkhead::Watch, sql, &params)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Watermark {
                    agent_id: AgentId(row.try_get(0)?),
                    acked_seq: row.try_get(1)?,
                })
            })
            .collect()
    }
}
