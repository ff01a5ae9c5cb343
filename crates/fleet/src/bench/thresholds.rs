//! The thresholds that results must meet.
//!
//! Ratios compare figures of one run, so they do not depend on the speed of the machine. A quick run is
//! small and noisy: its thresholds are twice as wide, and absolute ones are left out.

use super::{load::HeartbeatCost, results::Results};
use crate::procfs::Machine;

/// CPU per heartbeat of a comparable service at 333 heartbeats per second without TLS, in microseconds: server
/// and database.
const PEER_US: f64 = 406.0 + 192.0;

#[derive(Clone, Debug)]
pub struct Threshold {
    pub name: String,
    pub measured: f64,
    pub required: f64,
    /// Whether `required` is a minimum; otherwise it is a maximum.
    pub at_least: bool,
    pub met: bool,
}

/// Collects thresholds, with the slack that a quick run needs.
struct Collector {
    thresholds: Vec<Threshold>,
    slack: f64,
}

impl Collector {
    fn at_most(&mut self, name: impl Into<String>, measured: f64, required: f64) {
        let required = required * self.slack;
        self.add(name.into(), measured, required, false, measured <= required);
    }

    fn at_least(&mut self, name: impl Into<String>, measured: f64, required: f64) {
        self.add(name.into(), measured, required, true, measured >= required);
    }

    fn add(&mut self, name: String, measured: f64, required: f64, at_least: bool, met: bool) {
        self.thresholds.push(Threshold {
            name,
            measured,
            required,
            at_least,
            met,
        });
    }
}

pub fn check(results: &Results) -> Vec<Threshold> {
    let slack = if results.quick { 2.0 } else { 1.0 };
    let mut thresholds = Collector {
        thresholds: vec![],
        slack,
    };
    ratios(results, &mut thresholds);
    if !results.quick {
        absolutes(results, &mut thresholds);
    }
    thresholds.thresholds
}

fn ratios(results: &Results, thresholds: &mut Collector) {
    for rss in &results.rss {
        let name = format!("memory after traffic at {} agents, × bare echo", rss.agents);
        thresholds.at_most(name, rss.service.used_kib / rss.echo.used_kib, 1.15);
    }
    if let Some(pace) = &results.pace {
        let service = pace.service.service_us / pace.echo.service_us;
        thresholds.at_most("service CPU at pace, × bare echo", service, 1.8);
        let postgres = pace.service.postgres_us / pace.sql.postgres_us;
        thresholds.at_most("PostgreSQL CPU at pace, × bare SQL", postgres, 1.5);
    }
    if let Some(saturate) = &results.saturate {
        let p99 = saturate.half.ack.p99_ms;
        thresholds.at_most("acknowledgement p99 at half load, ms", p99, 1_000.0);
    }
    if let (Some(small), Some(large)) = (at(results, 2_000), at(results, 18_000)) {
        let growth = large.service_us / small.service_us;
        thresholds.at_most(
            "CPU per heartbeat at 18,000 agents, × at 2,000",
            growth,
            1.25,
        );
    }
}

fn absolutes(results: &Results, thresholds: &mut Collector) {
    if let Some(low) = &results.low {
        let us = low.service_us + low.postgres_us;
        thresholds.at_most(
            "CPU at 333/s over TLS, µs (a comparable service without TLS)",
            us,
            PEER_US,
        );
    }
    if let Some(saturate) = &results.saturate {
        let rate = saturate.service.per_second;
        thresholds.at_least("durable heartbeats/s at saturation", rate, 10_000.0);
    }
    if let Some(kill) = &results.kill {
        thresholds.at_most("all back after a kill, s", kill.back_seconds, 60.0);
        let connections = kill.most_connections as f64;
        thresholds.at_most(
            "PostgreSQL connections after a kill",
            connections,
            kill.pool as f64,
        );
    }
    if let Some(fifty) = &results.fifty {
        thresholds.at_most("fifty thousand: went offline", fifty.offline as f64, 0.0);
        thresholds.at_most(
            "fifty thousand: cores of services and PostgreSQL",
            fifty.cost.cores,
            1.0,
        );
    }
}

fn at(results: &Results, agents: u32) -> Option<HeartbeatCost> {
    let mut growth = results.growth.iter();
    growth.find(|cost| cost.agents == agents).copied()
}

/// The machine in one line.
pub fn machine(machine: &Machine) -> String {
    format!(
        "{} cores ({}), {} MiB, Linux {}",
        machine.cores, machine.cpu, machine.memory_mib, machine.kernel
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::results::{Memory, Rss},
        *,
    };

    fn with_rss(quick: bool, service: f64, echo: f64) -> Vec<Threshold> {
        let memory = |used_kib| Memory {
            idle_kib: 0.0,
            used_kib,
        };
        let mut results = Results::new(quick, 1);
        results.rss.push(Rss {
            agents: 5_000,
            service: memory(service),
            echo: memory(echo),
        });
        check(&results)
    }

    #[test]
    fn a_missed_threshold_fails_and_a_quick_run_has_slack() {
        assert!(with_rss(false, 50.0, 47.0)[0].met);
        assert!(!with_rss(false, 60.0, 47.0)[0].met);
        assert!(with_rss(true, 60.0, 47.0)[0].met);
        assert!(!with_rss(true, 120.0, 47.0)[0].met);
    }

    #[test]
    fn a_stage_that_did_not_run_has_no_threshold() {
        assert!(check(&Results::new(false, 1)).is_empty());
    }

    #[test]
    fn a_ratio_of_zeros_is_a_miss() {
        let thresholds = with_rss(false, 0.0, 0.0);
        assert!(!thresholds[0].met, "0 / 0 is not a number");
    }
}
