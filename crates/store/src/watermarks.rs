//! Watermarks, read without locks.

use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    error::StoreError,
    ids::AgentId,
    pool::{Bulkhead, Store},
    samples::Watermark,
};

impl Store {
    /// The committed watermarks of the active agents among `agents`.
    pub async fn watermarks(&self, agents: &[AgentId]) -> Result<Vec<Watermark>, StoreError> {
        let sql = "-- watermarks
            SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
             WHERE s.agent_id = ANY ($1) AND a.status = 'active'";
        let agents: Vec<Uuid> = agents.iter().map(|agent| agent.0).collect();
        let params = [(&agents as _, Type::UUID_ARRAY)];
        let rows = self.read("watermarks", Bulkhead::Watch, sql, &params);
        rows.await?.iter().map(Watermark::from_row).collect()
    }
}
