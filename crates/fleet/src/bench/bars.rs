//! The bars: what must hold of the results. Ratios are within one run, so that the machine cancels out.
//!
//! A quick run is small and noisy: its bars are twice as wide, and absolute ones are left out.

use super::{load::Cost, results::Results};
use crate::proc;

/// A peer's CPU a heartbeat at 333 a second without TLS, in microseconds: server and database.
const PEER_US: f64 = 406.0 + 192.0;

#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub found: f64,
    pub wanted: f64,
    /// Whether more is better.
    pub at_least: bool,
    pub held: bool,
}

/// Collects bars, with the width that a quick run needs.
struct Bars {
    bars: Vec<Bar>,
    slack: f64,
}

impl Bars {
    fn at_most(&mut self, name: impl Into<String>, found: f64, wanted: f64) {
        let wanted = wanted * self.slack;
        self.bars.push(Bar {
            name: name.into(),
            found,
            wanted,
            at_least: false,
            held: found <= wanted,
        });
    }

    fn at_least(&mut self, name: impl Into<String>, found: f64, wanted: f64) {
        self.bars.push(Bar {
            name: name.into(),
            found,
            wanted,
            at_least: true,
            held: found >= wanted,
        });
    }
}

pub fn bars(results: &Results) -> Vec<Bar> {
    let slack = if results.quick { 2.0 } else { 1.0 };
    let mut bars = Bars {
        bars: vec![],
        slack,
    };
    ratios(results, &mut bars);
    if !results.quick {
        figures(results, &mut bars);
    }
    bars.bars
}

fn ratios(results: &Results, bars: &mut Bars) {
    for rss in &results.rss {
        let name = format!("memory after traffic at {} agents, × bare echo", rss.agents);
        bars.at_most(name, rss.service.used_kib / rss.echo.used_kib, 1.15);
    }
    if let Some(pace) = &results.pace {
        let service = pace.service.service_us / pace.echo.service_us;
        bars.at_most("service CPU at pace, × bare echo", service, 1.8);
        let postgres = pace.service.postgres_us / pace.sql.postgres_us;
        bars.at_most("PostgreSQL CPU at pace, × bare SQL", postgres, 1.5);
    }
    if let Some(saturate) = &results.saturate {
        let p99 = saturate.half.ack.p99_ms;
        bars.at_most("acknowledgement p99 at half load, ms", p99, 1_000.0);
    }
    if let (Some(small), Some(large)) = (at(results, 2_000), at(results, 18_000)) {
        let growth = large.service_us / small.service_us;
        bars.at_most("CPU a heartbeat at 18,000, × at 2,000", growth, 1.25);
    }
}

fn figures(results: &Results, bars: &mut Bars) {
    if let Some(low) = &results.low {
        let us = low.service_us + low.postgres_us;
        bars.at_most(
            "CPU at 333/s over TLS, µs (the peer's without)",
            us,
            PEER_US,
        );
    }
    if let Some(saturate) = &results.saturate {
        let rate = saturate.service.per_second;
        bars.at_least("durable heartbeats/s at saturation", rate, 10_000.0);
    }
    if let Some(kill) = &results.kill {
        bars.at_most("all back after a kill, s", kill.back_seconds, 60.0);
        let connections = kill.most_connections as f64;
        bars.at_most(
            "PostgreSQL connections after a kill",
            connections,
            kill.pool as f64,
        );
    }
    if let Some(fifty) = &results.fifty {
        bars.at_most("fifty thousand: went offline", fifty.offline as f64, 0.0);
        bars.at_most(
            "fifty thousand: cores of services and PostgreSQL",
            fifty.cost.cores,
            1.0,
        );
    }
}

fn at(results: &Results, agents: u32) -> Option<Cost> {
    let mut growth = results.growth.iter();
    growth.find(|cost| cost.agents == agents).copied()
}

/// What the figures were measured on, in one line.
pub fn machine(machine: &proc::Machine) -> String {
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

    fn with_rss(quick: bool, service: f64, echo: f64) -> Vec<Bar> {
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
        bars(&results)
    }

    #[test]
    fn a_bar_that_is_missed_fails_and_a_quick_run_has_slack() {
        assert!(with_rss(false, 50.0, 47.0)[0].held);
        assert!(!with_rss(false, 60.0, 47.0)[0].held);
        assert!(with_rss(true, 60.0, 47.0)[0].held);
        assert!(!with_rss(true, 120.0, 47.0)[0].held);
    }

    #[test]
    fn what_was_not_measured_has_no_bar() {
        assert!(bars(&Results::new(false, 1)).is_empty());
    }

    #[test]
    fn nothing_measured_is_not_a_pass() {
        let bars = with_rss(false, 0.0, 0.0);
        assert!(!bars[0].held, "0 / 0 is no ratio");
    }
}
