//! The climb: how many agents fit on the machine. Each step adds one instance and its agents.
//!
//! It ends at the goal, when the machine no longer stores what the agents report, or before a further step would
//! use up the memory or the time, and the result says why. All agents stay connected and report every 30
//! seconds until the end, and the audit includes all of them. The fleet shares the machine with the service.

use std::time::Duration;

use svc_harness::AuditReport;
use tokio::time::{Instant, sleep};

use super::sizes::{Scale, ramp};
use crate::{
    figures::{Figures, Goal, Table},
    fleet::{Fleet, Totals, note},
    lab::{Lab, ResourceUsage, Settings},
    plan::Plan,
    procfs,
    stats::Quantiles,
};

/// The largest fleet, and how many agents each step adds.
const GOAL: u32 = 200_000;
const STEP: u32 = 16_700;
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

const COLUMNS: [&str; 9] = [
    "instances",
    "heartbeats/s",
    "cores of services",
    "of PostgreSQL",
    "of the fleet",
    "ack p99 ms",
    "services MiB",
    "fleet MiB",
    "MiB available",
];

/// What was measured with a number of agents.
#[derive(Clone, Debug, Default)]
struct Step {
    agents: u32,
    per_second: f64,
    /// Of services, PostgreSQL and fleet together.
    cores: f64,
    available_mib: u64,
    /// In the order of [`COLUMNS`].
    figures: Vec<f64>,
}

struct Climb {
    lab: Lab,
    fleets: Vec<Fleet>,
    /// The agents of a step.
    step: u32,
}

pub async fn run(scale: Scale) -> anyhow::Result<Figures> {
    let (goal, step) = (scale.agents(GOAL), scale.agents(STEP));
    let lab = Lab::start(Settings {
        instances: 1,
        interval: INTERVAL,
        durable: true,
    });
    let mut climb = Climb {
        lab: lab.await?,
        fleets: vec![],
        step,
    };
    let (began, mut steps) = (Instant::now(), Vec::<Step>::new());
    let stopped = loop {
        if let Err(error) = climb.grow().await {
            break format!("{step} more agents could not connect: {error:#}");
        }
        steps.push(climb.measure().await?);
        if let Some(why) = reason_to_stop(&steps, goal, began.elapsed()) {
            break why;
        }
    };
    note(&stopped);
    let offline = climb.lab.times_offline().await?;
    let books = climb.finish().await?;
    anyhow::ensure!(books.balance(), "the books do not balance: {books:?}");
    let table = Table::new("agents", &COLUMNS);
    let table = steps.iter().fold(table, |table, step| {
        table.row(step.agents.to_string(), step.figures.clone())
    });
    let reached = steps.last().map_or(0, |step| step.agents);
    Ok(Figures {
        tables: vec![table],
        goals: vec![Goal::at_least("agents", reached.into(), goal.into())],
        remark: format!(
            "Each agent reports every {} s. The climb ended: {stopped}. {} samples were acknowledged, and the audit found all of them; agents went offline {offline} times.",
            INTERVAL.as_secs(),
            books.acked
        ),
    })
}

/// The climb ends at the goal, if the last step was too much, or if another one like it would not fit.
fn reason_to_stop(steps: &[Step], goal: u32, elapsed: Duration) -> Option<String> {
    let last = steps.last()?;
    let sent = f64::from(last.agents) / INTERVAL.as_secs_f64();
    if last.per_second < KEPT_UP * sent {
        return Some(format!(
            "CPU: {:.0} of {sent:.0} heartbeats/s were acknowledged while services, PostgreSQL and fleet used {:.2} cores",
            last.per_second, last.cores
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
        ramp(self.step) * instances / IDLE_INSTANCES
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
        let per_second = grown(|totals| totals.counts.reports_acked) as f64 / seconds;
        let services = cores(usage.services.cpu_us - usage_before.services.cpu_us);
        let postgres = cores(usage.postgres.cpu_us - usage_before.postgres.cpu_us);
        let fleet = cores(grown(|totals| totals.cpu_us));
        let available_mib = procfs::available_mib();
        let step = Step {
            agents: self.agents(),
            per_second,
            cores: services + postgres + fleet,
            available_mib,
            figures: vec![
                self.lab.instances.len() as f64,
                per_second,
                services,
                postgres,
                fleet,
                after.iter().map(p99).fold(0.0, f64::max),
                (usage.services.rss_kib / 1024) as f64,
                (sum(&after, |totals| totals.rss_kib) / 1024) as f64,
                available_mib as f64,
            ],
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
