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

/// Fewer agents say little about what one costs.
pub const TELLING_AGENTS: i64 = 1000;
/// 50,000 agents that report every 30 s take 0.60 cores, of services and database together.
pub const CORES_PER_REPORT_A_SECOND: f64 = 0.60 / (50_000.0 / 30.0);
/// How much of processors and memory may be planned with: the rest is for storms and rollups.
pub const PLANNED: f64 = 0.7;

/// For how many more reports a second these instances have processors; unknown while they have measured nothing. `by_rules`: the
/// reports a second that rules of settings cause beyond those of the usual interval.
pub(crate) fn reports_room(loads: &[InstanceLoad], by_rules: f64) -> Option<f64> {
    let sum = |of: fn(&InstanceLoad) -> f64| loads.iter().map(of).sum::<f64>();
    let (used, cores) = (sum(|load| load.cores_used), sum(|load| load.cores));
    if used <= 0.0 {
        return None;
    }
    let agents: i64 = loads.iter().map(|load| load.agents).sum();
    let reports = by_rules + sum(|load| load.agents as f64 / load.heartbeat_seconds.max(1.0));
    let each = match agents {
        TELLING_AGENTS.. if reports > 0.0 => (used / reports).max(CORES_PER_REPORT_A_SECOND / 10.0),
        _ => CORES_PER_REPORT_A_SECOND,
    };
    Some(((cores * PLANNED - used) / each).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_for_reports_follows_what_a_report_has_cost() {
        let load = |agents, cores_used| InstanceLoad {
            agents,
            cores: 2.0,
            cores_used,
            heartbeat_seconds: 30.0,
            ..InstanceLoad::default()
        };
        assert_eq!(reports_room(&[], 0.0), None);
        assert_eq!(reports_room(&[load(0, 0.0)], 0.0), None, "not measured");
        let room = |loads: &[InstanceLoad], by_rules| reports_room(loads, by_rules).unwrap();
        let few = room(&[load(10, 0.4)], 0.0);
        assert!(
            (2770.0..2780.0).contains(&few),
            "1.0 cores by the benchmark: {few}"
        );
        // 1,000 reports a second have taken 0.4 cores, and 1.0 are left.
        let many = room(&[load(30_000, 0.4)], 0.0);
        assert!((2499.0..2501.0).contains(&many), "{many}");
        let ruled = room(&[load(30_000, 0.4)], 1000.0);
        assert!((4999.0..5001.0).contains(&ruled), "{ruled}");
        assert_eq!(room(&[load(30_000, 1.5)], 0.0), 0.0);
    }
}
