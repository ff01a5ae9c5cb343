//! Other cells, and moves of agents to them and from them, for the admin commands.
//!
//! An export has no secret: the hash of a key admits nobody, because whoever connects has to prove the key. What it says is
//! believed in the cell where a person imports it, and nowhere else.

use std::{net::IpAddr, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    prelude::*,
    service::registration::{NewAgent, RegistrationTx},
    values::{
        facts::{AgentFacts, HostFacts},
        labels::Labels,
        rollout::PLACES,
        status::{AgentStatus, Presence},
    },
};

record! {
    /// An agent that is told to move, or has moved.
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentMove {
        pub agent_id: AgentId,
        pub hostname: String,
        pub cell: String,
        pub presence: Presence,
        pub asked_at: Timestamp,
        pub asked_by: String,
        /// Why it has not moved, as it said.
        pub problem: String,
        pub problem_at: Option<Timestamp>,
        /// When it left; none if it has not, or is back.
        pub moved_at: Option<Timestamp>,
    }
}

/// Which agents are meant: those of hosts with these labels, or one; and of these a share in percent.
#[derive(Debug, Clone)]
pub struct MoveFilter {
    pub labels: Labels,
    pub agent: Option<AgentId>,
    pub share: u8,
}

/// An agent as it is exported and imported: one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Arrival {
    /// SHA-256 of its public key, in hexadecimal.
    pub key: String,
    /// Its id in the cell that it comes from. The new cell gives it one of its own.
    pub agent: Uuid,
    pub status: String,
    pub version: String,
    pub capabilities: Vec<String>,
    pub facts: HostFacts,
    /// Of its host.
    pub labels: Value,
    pub registered_from: Option<IpAddr>,
    /// The number up to which the cell has acknowledged. The agent itself says what came since.
    pub acked_seq: i64,
}

/// What became of an [`Arrival`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrived {
    New(AgentId),
    /// This cell has its key already.
    Known(AgentId),
    Refused(String),
}

/// All moves, or that of one agent.
pub(super) const MOVES: &str = "
    SELECT m.agent_id, h.hostname, m.cell, s.presence, m.asked_at, m.asked_by, m.problem, m.problem_at, m.moved_at
      FROM agent_moves m
      JOIN agents a ON a.id = m.agent_id
      JOIN hosts h ON h.id = a.host_id
      JOIN agent_state s ON s.agent_id = m.agent_id
     WHERE ($1::uuid IS NULL OR m.agent_id = $1)";

impl Store {
    /// Adds a cell, or replaces where it is.
    pub async fn cell_put(
        &self,
        name: &str,
        addresses: &[String],
        certificates: &[Vec<u8>],
        actor: &str,
    ) -> Result<()> {
        let sql = "-- cell_put
            INSERT INTO cells (name, addresses, certificates, added_by) VALUES ($1, $2, $3, $4)
                ON CONFLICT (name) DO UPDATE SET addresses = excluded.addresses, certificates = excluded.certificates,
                   added_at = clock_timestamp(), added_by = excluded.added_by";
        let params = params![name, addresses, certificates, actor];
        let rows = self.call("cell_put", Auth, sql, &params);
        rows.await.map(drop)
    }

    /// Removes a cell that no agent is told to move to, or has moved to. Returns whether it did.
    pub async fn cell_remove(&self, name: &str) -> Result<bool> {
        let sql = "-- cell_remove
            DELETE FROM cells c WHERE c.name = $1 AND NOT EXISTS (SELECT FROM agent_moves m WHERE m.cell = c.name)
            RETURNING c.name";
        let rows = self.call("cell_remove", Auth, sql, &params![name]).await?;
        Ok(!rows.is_empty())
    }

    /// Tells agents to move. Returns how many were told now, and how many do not know how to move.
    pub async fn moves_begin(
        &self,
        cell: &str,
        filter: &MoveFilter,
        actor: &str,
    ) -> Result<(i32, i32)> {
        let sql = "-- moves_begin\nSELECT marked, unable FROM move_agents($1, $2, $3, $4, $5)";
        let (labels, among) = (Json(&filter.labels), filter.among());
        let params = params![cell, labels, among, filter.threshold(), actor];
        let rows = self.call("moves_begin", Auth, sql, &params).await?;
        let counts = |row: &Row| Ok((row.try_get("marked")?, row.try_get("unable")?));
        rows.first().map_or(Ok((0, 0)), counts)
    }

    /// Takes back what agents were told that have not moved.
    pub async fn moves_stop(&self, filter: &MoveFilter, actor: &str) -> Result<i32> {
        let sql = "-- moves_stop\nSELECT stop_moves($1, $2, $3)";
        let (labels, among) = (Json(&filter.labels), filter.among());
        let params = params![labels, among, actor];
        self.run_value("moves_stop", Auth, sql, &params).await
    }

    /// Agents that are told to move come first, those with a problem before others.
    pub async fn moves_list(&self, limit: u32) -> Result<Page<AgentMove>> {
        let sql = format!(
            "-- moves_list{MOVES} ORDER BY m.moved_at IS NOT NULL, m.problem = '', m.asked_at, m.agent_id LIMIT $2"
        );
        let params = params![None::<Uuid>];
        self.read_page("moves_list", Auth, &sql, &params, limit)
            .await
    }

    /// Active agents for the import of another cell, at most `limit`, with ids above `after`.
    pub async fn arrivals_export(
        &self,
        filter: &MoveFilter,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Arrival>> {
        let sql = "-- arrivals_export
            SELECT jsonb_build_object(
                       'key', encode(a.key, 'hex'), 'agent', a.id, 'status', a.status, 'version', a.version,
                       'capabilities', a.capabilities, 'facts', a.facts, 'labels', h.labels,
                       'registered_from', host(a.registered_from), 'acked_seq', s.acked_seq) AS arrival
              FROM agents a
              JOIN hosts h ON h.id = a.host_id AND h.labels @> $1 AND h.retired_at IS NULL
              JOIN agent_state s ON s.agent_id = a.id
             WHERE a.status = 'active' AND ($2::uuid[] IS NULL OR a.id = ANY ($2)) AND rollout_place(a.id, 0) < $3 AND a.id > $4
             ORDER BY a.id LIMIT $5";
        let (labels, among) = (Json(&filter.labels), filter.among());
        let params = params![labels, among, filter.threshold(), after, limit];
        let rows = self.read("arrivals_export", Auth, sql, &params).await?;
        let read = |row: &Row| Ok(row.try_get::<_, Json<Arrival>>("arrival")?.0);
        rows.iter().map(read).collect()
    }

    /// Expects an agent of another cell: its key is admitted, and its numbers continue. A repetition changes nothing.
    pub async fn arrival_admit(
        &self,
        key: &[u8; 32],
        arrival: &Arrival,
        actor: &str,
    ) -> Result<Arrived> {
        self.registration_run("arrival_admit", async |tx: RegistrationTx| {
            tx.registration_lock(&[key], &arrival.facts.identifiers)
                .await?;
            let arrived = match tx.agent_by_key(key, Duration::ZERO).await? {
                Some(known) if known.status == AgentStatus::Active => Arrived::Known(known.id),
                Some(known) => {
                    return Ok(Arrived::Refused(format!(
                        "its key is {} here, as agent {}",
                        known.status, known.id
                    )));
                }
                None => tx.arrival_insert(key, arrival, actor).await?,
            };
            if let Arrived::New(agent) | Arrived::Known(agent) = arrived {
                tx.arrival_expect(agent, arrival, actor).await?;
            }
            Ok(arrived)
        })
        .await
    }
}

impl RegistrationTx {
    async fn arrival_insert(
        &self,
        key: &[u8; 32],
        arrival: &Arrival,
        actor: &str,
    ) -> Result<Arrived> {
        let host_id = match self.host_match(&arrival.facts.identifiers).await? {
            Some(host) => match host.incumbent {
                Some(agent) => {
                    let why = format!("its machine has the active agent {agent} here");
                    return Ok(Arrived::Refused(why));
                }
                None => {
                    self.host_refresh(host.id, &arrival.facts).await?;
                    host.id
                }
            },
            None => self.host_insert(&arrival.facts).await?,
        };
        let agent = AgentFacts {
            version: arrival.version.clone(),
            capabilities: arrival.capabilities.clone(),
        };
        let new = NewAgent {
            key,
            host_id,
            status: AgentStatus::Active,
            pending_reason: None,
            conflict_with: None,
            cloned_from: None,
            token_id: None,
            decided_by: Some(actor.to_owned()),
            facts: &arrival.facts,
            agent: &agent,
            address: arrival.registered_from.unwrap_or([0, 0, 0, 0].into()),
        };
        Ok(Arrived::New(self.agent_insert(&new).await?))
    }

    async fn arrival_expect(&self, agent: AgentId, arrival: &Arrival, actor: &str) -> Result<()> {
        let sql = "-- arrival_expect\nSELECT expect_agent($1, $2, $3, $4)";
        let params = params![agent.0, arrival.acked_seq, Json(&arrival.labels), actor];
        self.tx().execute(sql, &params).await.map(drop)
    }
}

impl MoveFilter {
    fn among(&self) -> Option<Vec<Uuid>> {
        self.agent.map(|agent| vec![agent.0])
    }

    fn threshold(&self) -> i32 {
        PLACES / 100 * i32::from(self.share)
    }
}
