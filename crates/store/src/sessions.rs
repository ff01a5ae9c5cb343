//! Streams of agents: opened, closed, swept and taken over, each in one statement
//! for many agents. Presence is what is written here; readers look at nothing else.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use crate::error::StoreError;
use crate::facts::HostFacts;
use crate::ids::{AgentId, HostId};
use crate::pool::{Bulkhead, Store};
use crate::status::AgentStatus;

/// A stream that wants to be its agent's newest.
#[derive(Clone, Debug, Serialize)]
pub struct SessionOpen {
    pub agent_id: AgentId,
    /// SHA-256 of the connection's client key, in hexadecimal.
    pub key: String,
    pub boot_id: String,
    pub run_id: String,
    pub version: String,
    pub capabilities: Vec<String>,
    pub facts: HostFacts,
    pub skew_ms: Option<i64>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    Open {
        epoch: i64,
        acked_seq: i64,
        host_id: HostId,
    },
    KeyMismatch,
    NotActive(AgentStatus),
    IdentityInUse,
    Deleted,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseCause {
    Goodbye,
    Lost,
    /// Asked to come back after this long.
    Drained {
        back_in: Duration,
    },
    /// Its agent is no longer active.
    Refused,
}

#[derive(Clone, Copy, Debug)]
pub struct SessionClose {
    pub agent_id: AgentId,
    pub epoch: i64,
    pub cause: CloseCause,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub fenced: i32,
    pub lost: i32,
    pub undrained: i32,
}

/// A stream, as the database knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSession {
    pub agent_id: AgentId,
    pub epoch: i64,
    /// Whether its agent may have one.
    pub active: bool,
}

/// A stream of ours that should end, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Displaced {
    NotActive {
        status: AgentStatus,
        since: Duration,
    },
    Deleted,
    Replaced,
}

impl CloseCause {
    pub fn as_str(self) -> &'static str {
        match self {
            CloseCause::Goodbye => "goodbye",
            CloseCause::Lost => "lost",
            CloseCause::Drained { .. } => "drained",
            CloseCause::Refused => "refused",
        }
    }

    /// An end that could not be written at once: its agent could not come back
    /// either, and is given time to.
    pub fn belated(self, grace: Duration) -> CloseCause {
        match self {
            CloseCause::Lost => CloseCause::Drained { back_in: grace },
            other => other,
        }
    }

    fn back_in(self) -> Option<f64> {
        match self {
            CloseCause::Drained { back_in } => Some(back_in.as_secs_f64()),
            _ => None,
        }
    }
}

impl Store {
    /// Opens many streams at once. Of one agent at most one may be among them. None
    /// is opened, and nothing comes back, for an instance that was fenced.
    pub async fn sessions_open(
        &self,
        instance: Uuid,
        opens: &[SessionOpen],
    ) -> Result<Vec<(AgentId, Opened)>, StoreError> {
        let sql = "-- sessions_open
            SELECT agent_id, verdict, epoch, acked_seq, host_id FROM sessions_open($1, $2)";
        let params = [
            (&instance as _, Type::UUID),
            (&Json(opens) as _, Type::JSONB),
        ];
        let rows = self
            .call("sessions_open", Bulkhead::Auth, sql, &params)
            .await?;
        rows.iter().map(opened_from_row).collect()
    }

    /// Closes many streams at once. What is no longer the newest stays as it is.
    pub async fn sessions_close(&self, closes: &[SessionClose]) -> Result<i32, StoreError> {
        let sql = "-- sessions_close\nSELECT sessions_close($1, $2, $3, $4) AS touched";
        let agents: Vec<Uuid> = closes.iter().map(|close| close.agent_id.0).collect();
        let epochs: Vec<i64> = closes.iter().map(|close| close.epoch).collect();
        let causes: Vec<&str> = closes.iter().map(|close| close.cause.as_str()).collect();
        let back_in: Vec<Option<f64>> = closes.iter().map(|close| close.cause.back_in()).collect();
        let params = [
            (&agents as _, Type::UUID_ARRAY),
            (&epochs as _, Type::INT8_ARRAY),
            (&causes as _, Type::TEXT_ARRAY),
            (&back_in as _, Type::FLOAT8_ARRAY),
        ];
        let rows = self
            .call("sessions_close", Bulkhead::Auth, sql, &params)
            .await?;
        rows.first()
            .map_or(Ok(0), |row| Ok(row.try_get("touched")?))
    }

    /// Ends the streams of instances that lapsed longer than `grace` ago, and of
    /// agents that did not come back from a drain. Does nothing unless `sweeper`
    /// holds its own lease when the statement runs.
    pub async fn sessions_sweep(
        &self,
        sweeper: Uuid,
        grace: Duration,
    ) -> Result<Swept, StoreError> {
        let sql = "-- sessions_sweep\nSELECT fenced, lost, undrained FROM sessions_sweep($1, $2)";
        let grace = grace.as_secs_f64();
        let params = [(&sweeper as _, Type::UUID), (&grace as _, Type::FLOAT8)];
        let rows = self
            .call("sessions_sweep", Bulkhead::Watch, sql, &params)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Swept::default());
        };
        Ok(Swept {
            fenced: row.try_get("fenced")?,
            lost: row.try_get("lost")?,
            undrained: row.try_get("undrained")?,
        })
    }

    /// Takes streams over under a new id; returns those that are ours still.
    pub async fn sessions_reclaim(
        &self,
        instance: Uuid,
        held: &[(AgentId, i64)],
    ) -> Result<Vec<AgentId>, StoreError> {
        let sql = "-- sessions_reclaim\nSELECT sessions_reclaim($1, $2, $3) AS agent_id";
        let (agents, epochs) = columns(held);
        let params = [
            (&instance as _, Type::UUID),
            (&agents as _, Type::UUID_ARRAY),
            (&epochs as _, Type::INT8_ARRAY),
        ];
        let rows = self
            .call("sessions_reclaim", Bulkhead::Watch, sql, &params)
            .await?;
        rows.iter()
            .map(|row| Ok(AgentId(row.try_get("agent_id")?)))
            .collect()
    }

    /// Of the streams that we hold, those that should end.
    pub async fn sessions_displaced(
        &self,
        held: &[(AgentId, i64)],
    ) -> Result<Vec<(AgentId, i64, Displaced)>, StoreError> {
        let sql = "-- sessions_displaced
            SELECT held.agent_id, held.epoch, a.status,
                   extract(epoch FROM clock_timestamp() - a.decided_at)::float8 AS since
              FROM unnest($1::uuid[], $2::bigint[]) AS held(agent_id, epoch)
              LEFT JOIN agents a ON a.id = held.agent_id
              LEFT JOIN agent_state s ON s.agent_id = held.agent_id
             WHERE a.status IS DISTINCT FROM 'active' OR s.epoch IS DISTINCT FROM held.epoch";
        let (agents, epochs) = columns(held);
        let params = [
            (&agents as _, Type::UUID_ARRAY),
            (&epochs as _, Type::INT8_ARRAY),
        ];
        let rows = self
            .read("sessions_displaced", Bulkhead::Watch, sql, &params)
            .await?;
        rows.iter().map(displaced_from_row).collect()
    }

    /// The streams that the database believes this instance to hold.
    pub async fn sessions_stored(&self, instance: Uuid) -> Result<Vec<StoredSession>, StoreError> {
        let sql = "-- sessions_stored
            SELECT s.agent_id, s.epoch, a.id IS NULL AS active
              FROM agent_state s LEFT JOIN agents a ON a.id = s.agent_id AND a.status <> 'active'
             WHERE s.instance_id = $1";
        let params = [(&instance as _, Type::UUID)];
        let rows = self
            .read("sessions_stored", Bulkhead::Watch, sql, &params)
            .await?;
        let standing = |row: &Row| {
            Ok(StoredSession {
                agent_id: AgentId(row.try_get("agent_id")?),
                epoch: row.try_get("epoch")?,
                active: row.try_get("active")?,
            })
        };
        rows.iter().map(standing).collect()
    }
}

fn columns(held: &[(AgentId, i64)]) -> (Vec<Uuid>, Vec<i64>) {
    held.iter().map(|(agent, epoch)| (agent.0, *epoch)).unzip()
}

fn opened_from_row(row: &Row) -> Result<(AgentId, Opened), StoreError> {
    let verdict: &str = row.try_get("verdict")?;
    let opened = match verdict {
        "open" => Opened::Open {
            epoch: row.try_get("epoch")?,
            acked_seq: row.try_get("acked_seq")?,
            host_id: HostId(row.try_get("host_id")?),
        },
        "key_mismatch" => Opened::KeyMismatch,
        "identity_in_use" => Opened::IdentityInUse,
        "deleted" => Opened::Deleted,
        status => Opened::NotActive(AgentStatus::from_column(status)),
    };
    Ok((AgentId(row.try_get("agent_id")?), opened))
}

fn displaced_from_row(row: &Row) -> Result<(AgentId, i64, Displaced), StoreError> {
    let status: Option<&str> = row.try_get("status")?;
    let displaced = match status.map(AgentStatus::from_column) {
        None => Displaced::Deleted,
        Some(AgentStatus::Active) => Displaced::Replaced,
        Some(status) => Displaced::NotActive {
            status,
            since: seconds(row.try_get("since")?),
        },
    };
    let (agent, epoch) = (row.try_get("agent_id")?, row.try_get("epoch")?);
    Ok((AgentId(agent), epoch, displaced))
}

fn seconds(number: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(number.unwrap_or_default()).unwrap_or_default()
}
