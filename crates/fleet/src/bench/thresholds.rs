//! The thresholds that results must meet.
//!
//! Ratios compare figures of one run, so they do not depend on the speed of the machine. A quick run is
//! small and noisy: its thresholds are twice as wide, and absolute ones are left out.

use super::{history::History, load::HeartbeatCost, results::Results, sql::SqlCost};

/// CPU per heartbeat of a comparable service at 333 heartbeats per second without TLS, in microseconds: server
/// and database.
const PEER_US: f64 = 406.0 + 192.0;
const QUICK_SLACK: f64 = 2.0;
/// Samples per second of 100,000 hosts at the default interval.
const LARGE_FLEET: f64 = 100_000.0 / 30.0;

#[derive(Clone, Debug)]
pub struct Threshold {
    pub name: String,
    pub measured: f64,
    pub required: f64,
    /// Whether `required` is a minimum; otherwise it is a maximum.
    pub at_least: bool,
}

impl Threshold {
    /// A figure that is not a number meets no threshold.
    pub fn met(&self) -> bool {
        match self.at_least {
            true => self.measured >= self.required,
            false => self.measured <= self.required,
        }
    }
}

pub fn check(results: &Results) -> Vec<Threshold> {
    let mut thresholds = ratios(results);
    match results.quick {
        true => thresholds
            .iter_mut()
            .for_each(|threshold| threshold.required *= QUICK_SLACK),
        false => thresholds.extend(absolutes(results)),
    }
    thresholds
}

fn at_most(name: impl Into<String>, measured: f64, required: f64) -> Threshold {
    Threshold {
        name: name.into(),
        measured,
        required,
        at_least: false,
    }
}

fn at_least(name: impl Into<String>, measured: f64, required: f64) -> Threshold {
    Threshold {
        at_least: true,
        ..at_most(name, measured, required)
    }
}

fn ratios(results: &Results) -> Vec<Threshold> {
    let memory = results.rss.iter().map(|rss| {
        let name = format!("memory after traffic at {} agents, × bare echo", rss.agents);
        at_most(name, rss.service.used_kib / rss.echo.used_kib, 1.15)
    });
    let mut thresholds: Vec<Threshold> = memory.collect();
    if let Some(pace) = &results.pace {
        let service = pace.service.service_us / pace.echo.service_us;
        thresholds.push(at_most("service CPU at pace, × bare echo", service, 1.8));
        let postgres = pace.service.postgres_us / pace.sql.postgres_us;
        thresholds.push(at_most("PostgreSQL CPU at pace, × bare SQL", postgres, 1.5));
        thresholds.extend(above_minimal("at pace", &pace.service, pace.minimal));
    }
    if let Some(instances) = &results.instances {
        let name = format!(
            "PostgreSQL CPU on {} instances, × on one",
            instances.instances
        );
        thresholds.push(at_most(name, instances.ratio(), 2.0));
    }
    if let Some(saturate) = &results.saturate {
        thresholds.extend(above_minimal(
            "at saturation",
            &saturate.service,
            saturate.minimal,
        ));
        let (name, p99) = (
            "acknowledgement p99 at half load, ms",
            saturate.half.ack.p99_ms,
        );
        thresholds.push(at_most(name, p99, 1_000.0));
    }
    if let (Some(small), Some(large)) = (at(results, 2_000), at(results, 18_000)) {
        let name = "CPU per heartbeat at 18,000 agents, × at 2,000";
        thresholds.push(at_most(name, large.service_us / small.service_us, 1.25));
    }
    thresholds
}

/// A costly statement shows here, whatever the service adds to it.
fn above_minimal(load: &str, cost: &HeartbeatCost, minimal: Option<SqlCost>) -> Option<Threshold> {
    let name = format!("PostgreSQL CPU {load}, × minimal SQL");
    minimal.map(|minimal| at_most(name, cost.postgres_us / minimal.postgres_us, 2.0))
}

fn absolutes(results: &Results) -> Vec<Threshold> {
    let mut thresholds = Vec::new();
    if let Some(low) = &results.low {
        let name = "CPU at 333/s over TLS, µs (a comparable service without TLS)";
        thresholds.push(at_most(name, low.service_us + low.postgres_us, PEER_US));
    }
    if let Some(saturate) = &results.saturate {
        let (name, rate) = (
            "durable heartbeats/s at saturation",
            saturate.service.per_second,
        );
        thresholds.push(at_least(name, rate, 20_000.0));
    }
    if let Some(enrol) = &results.enrol {
        thresholds.push(at_least("registrations/s", enrol.per_second, 700.0));
        let name = "second tries of a crowd that registers";
        let second_tries = enrol.second_tries.map(|count| count as f64);
        thresholds.extend(second_tries.map(|count| at_most(name, count, 0.0)));
    }
    if let Some(instances) = &results.instances {
        let name = format!("{} instances: cores of PostgreSQL", instances.instances);
        thresholds.push(at_most(name, instances.many.postgres_cores(), 0.15));
    }
    thresholds.extend(results.history.iter().flat_map(of_history));
    if let Some(kill) = &results.kill {
        let (connections, pool) = (kill.most_connections as f64, kill.pool as f64);
        thresholds.push(at_most("all back after a kill, s", kill.back_seconds, 60.0));
        thresholds.push(at_most(
            "PostgreSQL connections after a kill",
            connections,
            pool,
        ));
    }
    for restart in &results.restart {
        let site = format!("{} of {} restarted", restart.instances, restart.instances);
        let up = restart.killed_up_seconds.max(restart.stopped_up_seconds);
        thresholds.push(at_most(format!("{site}: all serve, s"), up, 5.0));
        let offline = restart.offline as f64;
        thresholds.push(at_most(format!("{site}: went offline"), offline, 0.0));
    }
    if let Some(fifty) = &results.fifty {
        let offline = fifty.offline as f64;
        thresholds.push(at_most("fifty thousand: went offline", offline, 0.0));
        let name = "fifty thousand: cores of services and PostgreSQL";
        thresholds.push(at_most(name, fifty.cost.cores, 1.0));
    }
    if let Some(climb) = &results.climb {
        let reached = climb.steps.last().map_or(0, |step| step.agents);
        thresholds.push(Threshold {
            at_least: true,
            ..at_most(
                "the climb: agents",
                f64::from(reached),
                f64::from(climb.goal),
            )
        });
    }
    thresholds
}

fn of_history(history: &History) -> Vec<Threshold> {
    let compaction = history.compacted.postgres_us + history.compacted.service_us;
    let mut thresholds = vec![
        at_most(
            "bytes on disk per sample, compacted",
            history.compacted.disk_bytes,
            60.0,
        ),
        at_most(
            "compaction for 100,000 hosts, cores",
            compaction * LARGE_FLEET / 1e6,
            0.05,
        ),
    ];
    thresholds.extend(history.all_vitals.map(|all| {
        let name = "bytes on disk per sample with all optional vitals, compacted";
        at_most(name, all.compacted.disk_bytes, 90.0)
    }));
    let page = |span: &str| history.pages.iter().find(|page| page.span == span);
    let day = page("24 h").and_then(|page| page.arrays_ms);
    let month = page("30 d").and_then(|page| page.one_array_ms);
    thresholds.extend(day.map(|ms| at_most("a day of a host read back, ms", ms, 10.0)));
    thresholds.extend(month.map(|ms| at_most("one vital of 30 days read back, ms", ms, 100.0)));
    thresholds
}

fn at(results: &Results, agents: u32) -> Option<HeartbeatCost> {
    let mut growth = results.growth.iter();
    growth.find(|cost| cost.agents == agents).copied()
}

#[cfg(test)]
mod tests {
    use super::{
        super::results::{Instances, Memory, Rss},
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
        assert!(with_rss(false, 50.0, 47.0)[0].met());
        assert!(!with_rss(false, 60.0, 47.0)[0].met());
        assert!(with_rss(true, 60.0, 47.0)[0].met());
        assert!(!with_rss(true, 120.0, 47.0)[0].met());
    }

    #[test]
    fn a_stage_that_did_not_run_has_no_threshold() {
        assert!(check(&Results::new(false, 1)).is_empty());
    }

    #[test]
    fn many_instances_are_compared_with_one_before_and_after() {
        let cost = |postgres_us| HeartbeatCost {
            postgres_us,
            ..HeartbeatCost::default()
        };
        let mut instances = Instances {
            instances: 10,
            one: cost(30.0),
            many: cost(60.0),
            one_again: None,
        };
        assert_eq!(instances.ratio(), 2.0);
        instances.one_again = Some(cost(50.0));
        assert_eq!(instances.ratio(), 1.5);
    }

    #[test]
    fn a_ratio_of_zeros_is_a_miss() {
        let thresholds = with_rss(false, 0.0, 0.0);
        assert!(!thresholds[0].met(), "0 / 0 is not a number");
    }
}
