//! How full an instance is, as it says itself beside its lease.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Fields may come and go between versions: an unknown one is ignored, a missing one is zero or unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceLoad {
    /// Agents with a stream.
    pub agents: i64,
    /// How many connections it accepts.
    pub max_connections: i64,
    /// Processors in use since the last renewal, and how many it may use.
    pub cores_used: f64,
    pub cores: f64,
    pub memory_bytes: i64,
    pub memory_limit_bytes: Option<i64>,
    pub queue_bytes: i64,
    /// Unknown for a queue outside of the process.
    pub max_queue_bytes: Option<i64>,
    pub queue_oldest_seconds: f64,
    /// How often its agents report.
    pub heartbeat_seconds: f64,
    /// When the TLS certificate that agents see expires.
    pub certificate_expires_at: Option<Timestamp>,
}
