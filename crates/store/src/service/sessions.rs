//! Sessions: the heartbeat streams of agents, and with them the agents' presence.
//!
//! Each operation is one statement for many agents, and is committed by itself. `agent_state`
//! is the only source of presence.
//!
//! **Fencing by epoch.** Each open of a session increments the agent's `epoch` under the lock
//! of its row. All later writes of a session name its epoch and have no effect if it is no
//! longer the agent's newest. This is necessary because the writes of different instances
//! arrive in any order: an agent that lost its connection may already have a new stream on
//! another instance when the old instance notices the loss. Without the epoch, that late close
//! would mark the connected agent as offline.
//!
//! **Fencing by lease.** The owner of a session is its `instance_id`. A fenced instance can
//! open no session, because no sweep would ever end it (see `instances`).
//!
//! **Lock order.** All statements lock rows of `agent_state` in the order of the agents' ids,
//! so that two of them cannot deadlock.

use std::{net::IpAddr, time::Duration};

use crate::{
    prelude::*,
    values::{
        facts::HostFacts,
        status::{AgentStatus, PresenceCause},
    },
};

/// How many sessions of each kind one call of [`Store::sessions_sweep`] ends: a fraction of a second.
pub const SWEEP_BATCH: i32 = 2000;

/// A request to open an agent's newest session.
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
    /// The address of the client.
    pub address: IpAddr,
    pub skew_ms: Option<i64>,
    /// When the client's Hello arrived, on the database's clock. The request is void if a newer
    /// session was opened since, and before this time: then the clock was set back.
    pub requested_at: Timestamp,
    /// When the request becomes void, on the database's clock: before the caller gives up.
    pub valid_until: Timestamp,
    /// Up to which number another cell has acknowledged, after a move.
    pub elsewhere: Option<i64>,
}

/// The outcome of a [`SessionOpen`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    Open {
        epoch: i64,
        acked_seq: i64,
        host_id: HostId,
        /// A person has asked for another key of this agent.
        change_key: bool,
    },
    KeyMismatch,
    /// The key was the agent's once. Another one has taken its place.
    RetiredKey,
    NotActive(AgentStatus),
    /// The agent's key is in use on another machine, which is being heard.
    IdentityInUse,
    /// The agent is presumed to be online on another machine. This may be the same agent
    /// after a failover, so the request should be repeated.
    PresumedInUse,
    Deleted,
    /// The request came too late: its validity has passed, or a newer session was opened.
    Late,
    /// Another transaction has locked the agent's row. The request may be repeated.
    Locked,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseCause {
    Goodbye,
    Lost,
    /// The instance asked the agent to reconnect. Until `back_in` has passed, the agent counts
    /// as online.
    Drained {
        back_in: Duration,
    },
    /// The agent restarts for an update. Until `back_in` has passed, it counts as online.
    Updating {
        back_in: Duration,
    },
    /// The agent is no longer active.
    Refused,
    /// The agent has left for another cell.
    Moved,
}

#[derive(Clone, Copy, Debug)]
pub struct SessionClose {
    pub agent_id: AgentId,
    pub epoch: i64,
    pub cause: CloseCause,
}

record! {
    /// How many sessions of lost instances a batch of the sweep ended, and how many agents did
    /// not reconnect after a drain.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Swept {
        pub lost: i32,
        pub undrained: i32,
    }
}

record! {
    /// A session as it is stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StoredSession {
        pub agent_id: AgentId,
        pub epoch: i64,
        /// Whether its agent is active.
        pub active: bool,
        /// Whether another machine contests the agent's identity.
        pub contested: bool,
    }
}

/// When the stream of a contested session last brought a message.
#[derive(Clone, Copy, Debug)]
pub struct SessionHeard {
    pub agent_id: AgentId,
    pub epoch: i64,
    /// On the database's clock.
    pub at: Timestamp,
}

/// Why a session that an instance holds must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Displaced {
    NotActive {
        status: AgentStatus,
        since: Duration,
    },
    Deleted,
    /// The agent has a newer session, or another live instance has this one.
    Replaced,
}

impl CloseCause {
    pub fn as_str(self) -> &'static str {
        let cause = match self {
            CloseCause::Goodbye => PresenceCause::Goodbye,
            CloseCause::Lost => PresenceCause::Lost,
            CloseCause::Drained { .. } => PresenceCause::Drained,
            CloseCause::Updating { .. } => PresenceCause::Updating,
            CloseCause::Refused => PresenceCause::Refused,
            CloseCause::Moved => PresenceCause::Moved,
        };
        cause.as_str()
    }

    /// The cause to write for an agent that gets this time to reconnect before it counts as offline. One that left, or was refused,
    /// gets none.
    pub fn with_grace(self, grace: Duration) -> CloseCause {
        match self {
            CloseCause::Lost if !grace.is_zero() => CloseCause::Drained { back_in: grace },
            CloseCause::Drained { back_in } => CloseCause::Drained {
                back_in: back_in.max(grace),
            },
            other => other,
        }
    }

    fn back_in(self) -> Option<f64> {
        match self {
            CloseCause::Drained { back_in } | CloseCause::Updating { back_in } => {
                Some(back_in.as_secs_f64())
            }
            _ => None,
        }
    }
}

impl Store {
    /// Opens many sessions. An agent may occur only once. For a fenced instance nothing is
    /// opened, and the result is empty.
    ///
    /// **Late requests are void.** The statement may run on the server after its caller has given
    /// up, and after the agent has connected to another instance. Without `requested_at` and
    /// `valid_until` it would then displace the live session.
    ///
    /// `heard_within`: how recent a message proves that an agent's stream is live.
    pub async fn sessions_open(
        &self,
        instance: Uuid,
        opens: &[SessionOpen],
        heard_within: Duration,
    ) -> Result<Vec<(AgentId, Opened)>> {
        let sql = "-- sessions_open
            SELECT agent_id, verdict, epoch, acked_seq, host_id, change_key FROM sessions_open_heard($1, $2, $3)";
        let params = params![instance, Json(opens), heard_within.as_secs_f64()];
        let rows = self.call("sessions_open", Auth, sql, &params);
        rows.await?.iter().map(opened_from_row).collect()
    }

    /// Closes many sessions. One that is not its agent's newest is left alone. Returns how many
    /// agents went offline.
    pub async fn sessions_close(&self, closes: &[SessionClose]) -> Result<i32> {
        let sql = "-- sessions_close\nSELECT sessions_close($1, $2, $3, $4) AS touched";
        let columns = Arrays::default()
            .column(closes, |close| close.agent_id.0)
            .column(closes, |close| close.epoch)
            .column(closes, |close| close.cause.as_str())
            .column(closes, |close| close.cause.back_in());
        let params = columns.params();
        let rows = self.call("sessions_close", Auth, sql, &params);
        rows.await?.first().map_or(Ok(0), |row| Ok(row.try_get(0)?))
    }

    /// Ends sessions of instances that were fenced or have stopped, and of agents that did not
    /// reconnect after a drain: at most [`SWEEP_BATCH`] of each. Does nothing unless `sweeper`
    /// holds a valid lease when the statement runs.
    pub async fn sessions_sweep(&self, sweeper: Uuid, grace: Duration) -> Result<Swept> {
        let sql = "-- sessions_sweep\nSELECT lost, undrained FROM sessions_sweep_batch($1, $2, $3)";
        let params = params![sweeper, grace.as_secs_f64(), SWEEP_BATCH];
        let rows = self.call("sessions_sweep", Watch, sql, &params);
        let rows = rows.await?;
        rows.first().map_or(Ok(Swept::default()), Swept::from_row)
    }

    /// Stores sessions that the instance holds for it again: after it was fenced and has a new
    /// id, or if the database has them otherwise for whatever reason. Returns their agents. The
    /// others are displaced, or their rows are locked, or the instance is fenced.
    pub async fn sessions_reclaim(
        &self,
        instance: Uuid,
        held: &[(AgentId, i64)],
    ) -> Result<Vec<AgentId>> {
        let sql = "-- sessions_reclaim\nSELECT sessions_reclaim($1, $2, $3) AS agent_id";
        let (agents, epochs) = columns(held);
        let params = params![instance, agents, epochs];
        let rows = self.call("sessions_reclaim", Watch, sql, &params);
        let agent = |row: &Row| Ok(row.try_get("agent_id")?);
        rows.await?.iter().map(agent).collect()
    }

    /// The sessions among `held` that must end, and why.
    pub async fn sessions_displaced(
        &self,
        instance: Uuid,
        held: &[(AgentId, i64)],
    ) -> Result<Vec<(AgentId, i64, Displaced)>> {
        let sql = "-- sessions_displaced
            SELECT held.agent_id, held.epoch, a.status,
                   extract(epoch FROM clock_timestamp() - a.decided_at)::float8 AS since
              FROM unnest($1::uuid[], $2::bigint[]) AS held(agent_id, epoch)
              LEFT JOIN agents a ON a.id = held.agent_id
              LEFT JOIN agent_state s ON s.agent_id = held.agent_id
             WHERE a.status IS DISTINCT FROM 'active' OR s.epoch IS DISTINCT FROM held.epoch
                OR held_elsewhere(s.instance_id, $3)";
        let (agents, epochs) = columns(held);
        let params = params![agents, epochs, instance];
        let rows = self.read("sessions_displaced", Watch, sql, &params);
        rows.await?.iter().map(displaced_from_row).collect()
    }

    /// The sessions that are stored for this instance. The join finds agents that are not
    /// active, so that it reads the small partial index of those and not all agents.
    pub async fn sessions_stored(&self, instance: Uuid) -> Result<Vec<StoredSession>> {
        let sql = "-- sessions_stored
            SELECT s.agent_id, s.epoch, a.id IS NULL AS active,
                   happened_within(s.contested_at, 120) AS contested
              FROM agent_state s LEFT JOIN agents a ON a.id = s.agent_id AND a.status <> 'active'
             WHERE s.instance_id = $1";
        let params = params![instance];
        self.read_all("sessions_stored", Watch, sql, &params).await
    }

    /// Writes when contested sessions were last heard. One that is not its agent's newest is
    /// left alone, and so is one whose row is locked: the caller repeats this soon, and must not
    /// wait for one agent.
    pub async fn sessions_heard(&self, heard: &[SessionHeard]) -> Result<()> {
        let sql = "-- sessions_heard
            WITH locked AS (
                SELECT h.agent_id, h.at FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) AS h(agent_id, epoch, at)
                 CROSS JOIN LATERAL (
                       SELECT FROM agent_state s
                        WHERE s.agent_id = h.agent_id AND s.epoch = h.epoch FOR UPDATE SKIP LOCKED) mine)
            UPDATE agent_state s SET heard_at = least(locked.at, now())
              FROM locked WHERE s.agent_id = locked.agent_id";
        let columns = Arrays::default()
            .column(heard, |heard| heard.agent_id.0)
            .column(heard, |heard| heard.epoch)
            .column(heard, |heard| heard.at);
        let params = columns.params();
        let rows = self.call("sessions_heard", Watch, sql, &params);
        rows.await.map(drop)
    }
}

fn columns(held: &[(AgentId, i64)]) -> (Vec<Uuid>, Vec<i64>) {
    held.iter().map(|(agent, epoch)| (agent.0, *epoch)).unzip()
}

fn opened_from_row(row: &Row) -> Result<(AgentId, Opened)> {
    let verdict: &str = row.try_get("verdict")?;
    let opened = match verdict {
        "open" => Opened::Open {
            epoch: row.try_get("epoch")?,
            acked_seq: row.try_get("acked_seq")?,
            host_id: row.try_get("host_id")?,
            change_key: row.try_get("change_key")?,
        },
        "key_mismatch" => Opened::KeyMismatch,
        "retired_key" => Opened::RetiredKey,
        "identity_in_use" => Opened::IdentityInUse,
        "presumed" => Opened::PresumedInUse,
        "deleted" => Opened::Deleted,
        "late" => Opened::Late,
        "locked" => Opened::Locked,
        status => Opened::NotActive(AgentStatus::from_column(status)),
    };
    Ok((row.try_get("agent_id")?, opened))
}

fn displaced_from_row(row: &Row) -> Result<(AgentId, i64, Displaced)> {
    let displaced = match row.try_get("status")? {
        None => Displaced::Deleted,
        Some(AgentStatus::Active) => Displaced::Replaced,
        Some(status) => Displaced::NotActive {
            status,
            since: seconds(row.try_get("since")?),
        },
    };
    Ok((row.try_get("agent_id")?, row.try_get("epoch")?, displaced))
}

fn seconds(number: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(number.unwrap_or_default()).unwrap_or_default()
}
