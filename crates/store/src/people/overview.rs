//! Counts of tokens, agents, hosts and history, and the live instances.

use std::collections::BTreeSet;

use crate::{people::signing_keys::SigningKeyUse, prelude::*, service::instances::InstanceRecord};

#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    pub tokens: TokenCounts,
    pub agents: AgentCounts,
    pub hosts: HostCounts,
    pub history: HistoryState,
    /// The instances that hold a lease now.
    pub instances: Vec<InstanceRecord>,
    /// The ids of their signing keys. There are two while the key is rotated.
    pub kids: BTreeSet<String>,
    /// The keys that they sign with or accept.
    pub keys: Vec<SigningKeyUse>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct TokenCounts {
        pub active: i64,
        pub expired: i64,
        pub exhausted: i64,
        pub revoked: i64,
    }
}

record! {
    /// By status, and the active ones by presence.
    #[derive(Debug, Clone, Serialize)]
    pub struct AgentCounts {
        pub pending: i64,
        pub active: i64,
        pub rejected: i64,
        pub revoked: i64,
        pub online: i64,
        pub offline: i64,
    }
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct HostCounts {
        pub in_service: i64,
        pub retired: i64,
    }
}

record! {
    /// The kept days of samples, and the backlog of the compaction.
    #[derive(Debug, Clone, Serialize)]
    pub struct HistoryState {
        /// The number of daily partitions, including those created ahead.
        pub days: i64,
        pub oldest_day: Option<String>,
        pub newest_day: Option<String>,
        /// Arrival hours that are over and not compacted yet, and how long ago the oldest ended.
        pub hours_to_compact: i64,
        pub compaction_lag_seconds: f64,
        /// Arrival hours of hosts that could not be compacted, even alone.
        pub hosts_set_aside: i64,
    }
}

impl Store {
    pub async fn overview(&self) -> Result<Overview> {
        let instances = self.instances_live().await?;
        Ok(Overview {
            tokens: TokenCounts::from_row(&self.overview_row(TOKENS).await?)?,
            agents: AgentCounts::from_row(&self.overview_row(AGENTS).await?)?,
            hosts: HostCounts::from_row(&self.overview_row(HOSTS).await?)?,
            history: self.history_state().await?,
            keys: self.signing_keys().await?,
            kids: instances.iter().map(|live| live.kid.clone()).collect(),
            instances,
        })
    }

    pub async fn history_state(&self) -> Result<HistoryState> {
        HistoryState::from_row(&self.overview_row(HISTORY).await?)
    }

    /// The queries are aggregates without GROUP BY, which always return one row.
    async fn overview_row(&self, sql: &str) -> Result<Row> {
        self.run("overview", Watch, async |tx| tx.query_one(sql, &[]).await)
            .await
    }
}

const TOKENS: &str = "-- overview
    SELECT count(*) FILTER (WHERE state = 'active') AS active,
           count(*) FILTER (WHERE state = 'expired') AS expired,
           count(*) FILTER (WHERE state = 'exhausted') AS exhausted,
           count(*) FILTER (WHERE state = 'revoked') AS revoked
      FROM enrolment_token_states";

const AGENTS: &str = "-- overview
    SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
           count(*) FILTER (WHERE status = 'active') AS active,
           count(*) FILTER (WHERE status = 'rejected') AS rejected,
           count(*) FILTER (WHERE status = 'revoked') AS revoked,
           count(*) FILTER (WHERE status = 'active' AND presence = 'online') AS online,
           count(*) FILTER (WHERE status = 'active' AND presence = 'offline') AS offline
      FROM agents JOIN agent_state ON agent_id = id";

const HOSTS: &str = "-- overview
    SELECT count(*) FILTER (WHERE retired_at IS NULL) AS in_service,
           count(*) FILTER (WHERE retired_at IS NOT NULL) AS retired
      FROM hosts";

const HISTORY: &str = "-- overview
    SELECT count(*) AS days, min(day)::text AS oldest_day, max(day)::text AS newest_day,
           (SELECT count(*) FROM sample_hours
             WHERE compacted_below < 2147483647 AND arrived_hour + interval '1 hour' < samples_now()) AS hours_to_compact,
           (SELECT coalesce(greatest(extract(epoch FROM samples_now() - min(arrived_hour) - interval '1 hour'), 0), 0)::float8
              FROM sample_hours WHERE compacted_below < 2147483647) AS compaction_lag_seconds,
           (SELECT count(*) FROM hosts_set_aside) AS hosts_set_aside
      FROM sample_days WHERE NOT detaching";
