//! Hosts: their record, details and retirement. `console::search` finds those of a list.

use serde::Deserialize;

use crate::{
    people::{
        agents::{AgentFilter, AgentRecord},
        books::AgentBooks,
    },
    prelude::*,
    values::{labels::Labels, status::Presence},
};

/// The joins do not change the number of rows: a unique index allows one active agent per host, and every
/// host has its row of vitals.
pub(super) const SELECT: &str = "SELECT h.id, h.hostname, a.id AS agent_id, a.version,
                CASE s.cause WHEN 'updating' THEN 'updating' ELSE s.presence END AS presence, s.presence_since, h.os, h.os_version,
                h.arch, h.kernel_version, h.cpu_count, h.mac_addresses,
                h.ip_addresses, h.boot_id, h.labels, h.created_at, h.facts_at, h.retired_at, v.vitals_at,
                v.cpu_percent::float8, v.load_1m::float8, v.load_5m::float8, v.load_15m::float8, v.memory_used_bytes,
                coalesce(v.memory_total_bytes, h.memory_total_bytes) AS memory_total_bytes, v.swap_used_bytes,
                v.swap_total_bytes, v.uptime_seconds, v.process_count::bigint, v.network_rx_bytes, v.network_tx_bytes,
                v.fullest_disk_percent, v.fullest_disk_mount_point, v.spool_problem, v.unreadable_mounts,
                disks_json(d.disks, d.parts, v.parts) AS disks,
                n.agent_count, n.pending_count
           FROM hosts h
           LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
           LEFT JOIN agent_state s ON s.agent_id = a.id
           JOIN host_vitals v ON v.host_id = h.id
           LEFT JOIN sample_shapes d ON d.shape = v.shape
          CROSS JOIN LATERAL (
                SELECT count(*) AS agent_count, count(*) FILTER (WHERE status = 'pending') AS pending_count
                  FROM agents WHERE host_id = h.id) n";

/// How many agents of a host are shown.
const AGENTS_SHOWN: u32 = 1000;

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct HostRecord {
        pub id: HostId,
        pub hostname: String,
        /// The active agent and its presence.
        pub agent_id: Option<AgentId>,
        /// Of the active agent. The details have it with the agents.
        #[serde(skip)]
        pub version: Option<String>,
        pub presence: Option<Presence>,
        pub presence_since: Option<Timestamp>,
        pub os: String,
        pub os_version: String,
        pub arch: String,
        pub kernel_version: String,
        pub cpu_count: i64,
        pub memory_total_bytes: i64,
        pub mac_addresses: Vec<String>,
        pub ip_addresses: Vec<String>,
        pub boot_id: String,
        pub labels: Labels,
        pub created_at: Timestamp,
        pub facts_at: Timestamp,
        pub retired_at: Option<Timestamp>,
        /// The time of the latest sample, which the vitals are from.
        pub vitals_at: Option<Timestamp>,
        pub cpu_percent: Option<f64>,
        pub load_1m: Option<f64>,
        pub load_5m: Option<f64>,
        pub load_15m: Option<f64>,
        pub memory_used_bytes: Option<i64>,
        pub swap_used_bytes: Option<i64>,
        pub swap_total_bytes: Option<i64>,
        pub uptime_seconds: Option<i64>,
        pub process_count: Option<i64>,
        pub network_rx_bytes: Option<i64>,
        pub network_tx_bytes: Option<i64>,
        /// In whole percents, rounded down.
        pub fullest_disk_percent: Option<i16>,
        pub fullest_disk_mount_point: Option<String>,
        pub disks: Option<Json<Vec<Disk>>>,
        /// Why its agent cannot store samples on its own disk.
        pub spool_problem: Option<String>,
        /// The mount points of file systems that did not say how full they are.
        pub unreadable_mounts: Option<Json<Vec<String>>>,
        /// Agents of any status, and the pending ones among them.
        pub agent_count: i64,
        pub pending_count: i64,
    }
}

/// A file system, as the SQL function `disks_json` makes it of the parts of a sample.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub device: String,
    pub fs_type: String,
    pub mount_point: String,
    pub total_bytes: i64,
    pub used_bytes: i64,
}

impl HostRecord {
    pub fn disks(&self) -> &[Disk] {
        let disks = self.disks.as_ref();
        disks.map(|disks| disks.0.as_slice()).unwrap_or_default()
    }

    pub fn is_updating(&self) -> bool {
        self.presence == Some(Presence::Updating)
    }

    /// Its agent lives in another cell, or is expected from one.
    pub fn is_moved(&self) -> bool {
        self.presence == Some(Presence::Moved)
    }

    /// An agent that restarts for an update counts as online until the time that it has announced.
    pub fn is_online(&self) -> bool {
        self.presence
            .is_some_and(|presence| !matches!(presence, Presence::Offline | Presence::Moved))
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct HostDetail {
    #[serde(flatten)]
    pub host: HostRecord,
    pub identifiers: Vec<IdentifierRecord>,
    pub agents: Vec<AgentRecord>,
    /// The books of agents that have reported.
    pub books: Vec<AgentBooks>,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct IdentifierRecord {
        pub kind: String,
        pub value: String,
        pub added_at: Timestamp,
    }
}

record! {
    /// What names a host elsewhere.
    #[derive(Debug, Clone)]
    pub struct HostIdentity {
        pub id: HostId,
        pub hostname: String,
        pub os: String,
        pub os_version: String,
        pub arch: String,
        pub labels: Labels,
    }
}

impl Store {
    pub async fn hosts_identify(&self, hosts: &[HostId]) -> Result<Vec<HostIdentity>> {
        let sql = "-- hosts_identify
            SELECT id, hostname, os, os_version, arch, labels FROM hosts WHERE id = ANY ($1)";
        let hosts: Vec<Uuid> = hosts.iter().map(|host| host.0).collect();
        let params = params![hosts];
        self.read_all("hosts_identify", Watch, sql, &params).await
    }

    /// Hosts that `name` may mean: a prefix of the id (at least 4 characters), or a hostname.
    pub async fn hosts_find(&self, name: &str, limit: u32) -> Result<Page<HostRecord>> {
        let sql = format!(
            "-- hosts_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(h.id::text, lower($1)) OR h.hostname = $1
             ORDER BY h.hostname, h.created_at, h.id LIMIT $2"
        );
        let params = params![name];
        self.read_page("hosts_find", Auth, &sql, &params, limit)
            .await
    }

    pub async fn host_show(&self, host: HostId) -> Result<Option<HostDetail>> {
        let sql = format!("-- host_show\n{SELECT} WHERE h.id = $1");
        let params = params![host.0];
        let found = self.read_first("host_show", Auth, &sql, &params);
        let Some(record) = found.await? else {
            return Ok(None);
        };
        let filter = AgentFilter {
            host: Some(host),
            ..AgentFilter::default()
        };
        Ok(Some(HostDetail {
            host: record,
            identifiers: self.host_show_identifiers(host).await?,
            agents: self.agents_list(&filter, AGENTS_SHOWN).await?.rows,
            books: self.host_books(host).await?,
        }))
    }

    /// Strongest first.
    async fn host_show_identifiers(&self, host: HostId) -> Result<Vec<IdentifierRecord>> {
        let sql = "-- host_show
            SELECT kind, value, added_at FROM host_identifiers WHERE host_id = $1
             ORDER BY array_position(ARRAY['cloud', 'hardware', 'machine', 'network'], kind), value";
        let params = params![host.0];
        self.read_all("host_show", Auth, sql, &params).await
    }

    /// Takes a host out of service, and revokes or rejects its agents. Returns how many.
    pub async fn host_retire(
        &self,
        host: HostId,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<i32> {
        let sql = "-- host_retire\nSELECT retire_host($1, $2, $3)";
        let params = params![host.0, actor, reason];
        self.run_value("host_retire", Auth, sql, &params).await
    }
}
