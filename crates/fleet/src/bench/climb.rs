//! The climb: how many agents fit on the machine. Each step adds one instance and its agents.
//!
//! It ends at the goal, when the machine no longer stores what the agents report, or before a further step would
//! use up the memory or the time, and the result says why. All agents stay connected and report every 30
//! seconds until the end, and the audit includes all of them. The fleet shares the machine with the service.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use svc_testkit::AuditReport;
use tokio::time::{Instant, sleep};

use super::{note, sizes::Sizes};
use crate::{
    fleet::{Fleet, Totals},
    lab::{Lab, ResourceUsage, Settings},
    plan::Plan,
    procfs,
    run::report::Quantiles,
};

/// The default of the service.
const INTERVAL: Duration = Duration::from_secs(30);
/// The part of the reports of a window that must be acknowledged in it. Less means that a backlog grows.
const KEPT_UP: f64 = 0.95;
/// No step starts later: the stage as a whole has a deadline.
const TIME_LIMIT: Duration = Duration::from_mins(45);
/// The instances with which the machine still has time for newcomers at the full rate.
const IDLE_INSTANCES: u32 = 3;
/// Newcomers that connect at once.
const OPENINGS: usize = 128;
/// For the agents of the last step to start reporting.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// The length of the measurement of a step: every agent reports once in it.
const WINDOW: Duration = INTERVAL;
/// For the agents of a step to connect after their ramp, and for all samples to be acknowledged.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Memory that must stay available for everything else.
const RESERVED_MIB: u64 = 1_500;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClimbResult {
    pub goal: u32,
    /// Seconds between two reports of an agent.
    #[serde(default)]
    pub interval: u64,
    pub steps: Vec<Step>,
    /// Why the climb ended.
    pub stopped: String,
    pub offline: u64,
    pub acked: u64,
}

/// The cost with a given number of agents.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    pub agents: u32,
    pub instances: usize,
    pub per_second: f64,
    pub service_cores: f64,
    pub postgres_cores: f64,
    pub fleet_cores: f64,
    /// The highest of all fleets.
    pub p99_ms: f64,
    pub service_mib: u64,
    pub fleet_mib: u64,
    pub available_mib: u64,
}

struct Climb {
    lab: Lab,
    fleets: Vec<Fleet>,
    step: u32,
    ramp: Duration,
}

pub async fn run(sizes: &Sizes) -> anyhow::Result<ClimbResult> {
    let lab = Lab::start(Settings {
        instances: 1,
        interval: INTERVAL,
        durable: true,
    });
    let mut climb = Climb {
        lab: lab.await?,
        fleets: vec![],
        step: sizes.climb_step,
        ramp: sizes.ramp(sizes.climb_step),
    };
    let (began, mut steps) = (Instant::now(), Vec::<Step>::new());
    let stopped = loop {
        if let Err(error) = climb.grow().await {
            break format!("{} more agents could not connect: {error:#}", climb.step);
        }
        steps.push(climb.measure().await?);
        if let Some(why) = reason_to_stop(&steps, sizes.climb_goal, began.elapsed()) {
            break why;
        }
    };
    note(&stopped);
    let offline = climb.lab.times_offline().await?;
    let books = climb.finish().await?;
    anyhow::ensure!(books.balance(), "the books do not balance: {books:?}");
    Ok(ClimbResult {
        goal: sizes.climb_goal,
        interval: INTERVAL.as_secs(),
        steps,
        stopped,
        offline,
        acked: books.acked,
    })
}

/// The climb ends at the goal, if the last step was too much, or if another one like it would not fit.
fn reason_to_stop(steps: &[Step], goal: u32, elapsed: Duration) -> Option<String> {
    let last = steps.last()?;
    let sent = f64::from(last.agents) / INTERVAL.as_secs_f64();
    if last.per_second < KEPT_UP * sent {
        let cores = last.service_cores + last.postgres_cores + last.fleet_cores;
        return Some(format!(
            "CPU: {:.0} of {sent:.0} heartbeats/s were acknowledged while services, PostgreSQL and fleet used {cores:.2} cores",
            last.per_second
        ));
    }
    if last.agents >= goal {
        return Some("the goal is reached".into());
    }
    if elapsed > TIME_LIMIT {
        return Some(format!("{} minutes are used up", TIME_LIMIT.as_secs() / 60));
    }
    let before = steps.iter().rev().nth(1).map(|step| step.available_mib);
    let taken = before.map_or(0, |before| before.saturating_sub(last.available_mib));
    (last.available_mib < taken + RESERVED_MIB).then(|| {
        format!(
            "memory: {} MiB are available, and a step takes {taken} MiB",
            last.available_mib
        )
    })
}

impl Climb {
    /// Adds an instance, and agents that connect only to it.
    async fn grow(&mut self) -> anyhow::Result<()> {
        if !self.fleets.is_empty() {
            self.lab.add_instance().await?;
        }
        let newest = self.lab.instances.last().map(|instance| instance.grpc);
        let ramp = self.next_ramp();
        let plan = Plan {
            first: self.agents(),
            ramp,
            openings: Some(OPENINGS),
            targets: newest.into_iter().collect(),
            ..self.lab.plan(self.step).await?
        };
        self.fleets.push(Fleet::start(plan, 1)?);
        for fleet in &self.fleets {
            fleet.all_connected(ramp + TIMEOUT).await?;
        }
        Ok(())
    }

    /// A newcomer takes about 6 ms of the machine's CPU: its keys, the handshake, the registration, the JWT, its first
    /// stream. Nobody rolls out hundreds a second beside a fleet that needs most of the CPU, so each step takes longer
    /// than the last.
    fn next_ramp(&self) -> Duration {
        let instances = (self.fleets.len() as u32 + 1).max(IDLE_INSTANCES);
        self.ramp * instances / IDLE_INSTANCES
    }

    fn agents(&self) -> u32 {
        self.fleets.len() as u32 * self.step
    }

    async fn measure(&self) -> anyhow::Result<Step> {
        sleep(SETTLE_TIME).await;
        for fleet in &self.fleets {
            fleet.open_window();
        }
        let ((usage_before, before), began) = (self.read().await?, Instant::now());
        sleep(WINDOW).await;
        let (usage, after) = self.read().await?;
        let seconds = began.elapsed().as_secs_f64();
        let cores = |us: u64| us as f64 / 1e6 / seconds;
        let sum = |totals: &[Totals], value: fn(&Totals) -> u64| -> u64 {
            totals.iter().map(value).sum()
        };
        let grown = |value: fn(&Totals) -> u64| sum(&after, value) - sum(&before, value);
        let p99 = |totals: &Totals| Quantiles::of(&totals.window.ack).p99_ms;
        let step = Step {
            agents: self.agents(),
            instances: self.lab.instances.len(),
            per_second: grown(|totals| totals.counts.reports_acked) as f64 / seconds,
            service_cores: cores(usage.services.cpu_us - usage_before.services.cpu_us),
            postgres_cores: cores(usage.postgres.cpu_us - usage_before.postgres.cpu_us),
            fleet_cores: cores(grown(|totals| totals.cpu_us)),
            p99_ms: after.iter().map(p99).fold(0.0, f64::max),
            service_mib: usage.services.rss_kib / 1024,
            fleet_mib: sum(&after, |totals| totals.rss_kib) / 1024,
            available_mib: procfs::available_mib(),
        };
        note(&format!("{step:?}"));
        Ok(step)
    }

    async fn read(&self) -> anyhow::Result<(ResourceUsage, Vec<Totals>)> {
        let usage = self.lab.usage().await?;
        Ok((usage, self.fleets.iter().map(Fleet::totals).collect()))
    }

    /// Waits for all acknowledgements, and audits the database with the balances of all fleets.
    async fn finish(self) -> anyhow::Result<AuditReport> {
        let agents = self.fleets.iter().map(Fleet::agents).sum();
        for fleet in &self.fleets {
            fleet.order(|orders| orders.quiet = true)?;
        }
        for fleet in &self.fleets {
            fleet.settle(TIMEOUT).await?;
        }
        let mut balances = Vec::new();
        for fleet in self.fleets {
            balances.extend(fleet.finish().await?.balances);
        }
        anyhow::ensure!(!balances.is_empty(), "no agent connected");
        AuditReport::of(&balances, Some(&self.lab.database_url()), agents).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(agents: u32, available_mib: u64) -> Step {
        Step {
            agents,
            available_mib,
            per_second: f64::from(agents) / 30.0,
            ..Step::default()
        }
    }

    #[test]
    fn the_climb_ends_at_the_goal_or_before_memory_or_time_is_used_up() {
        let steps = [step(10, 9_000), step(20, 7_000)];
        let early = Duration::from_mins(5);
        assert_eq!(reason_to_stop(&steps, 100, early), None);
        assert!(reason_to_stop(&steps, 20, early).is_some());
        assert!(reason_to_stop(&steps, 100, TIME_LIMIT * 2).is_some());
        let steps = [step(10, 5_000), step(20, 3_000)];
        assert!(reason_to_stop(&steps, 100, early).is_some_and(|why| why.contains("memory")));
        let slow = Step {
            per_second: 0.5,
            ..step(20, 7_000)
        };
        let why = reason_to_stop(&[slow], 20, early);
        assert!(
            why.is_some_and(|why| why.contains("CPU")),
            "even at the goal"
        );
    }
}
