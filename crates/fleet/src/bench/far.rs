//! As far up as memory goes: a fleet that grows by an instance and its agents at a time.
//!
//! It stops by itself, at the goal, while the machine still has memory left, or when its time is
//! used up, and says why. All agents that came stay, report, and must be in the books at the end. They
//! report seldom: what is asked is how many fit, and who lets them in shares the machine with them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{note, sizes::Sizes};
use crate::{
    fleet::{Fleet, Outcome, Totals},
    lab::{Lab, Settings, Spent},
    plan::Plan,
    proc,
    run::{audit::Books, report::Quantiles},
};

const INTERVAL: Duration = Duration::from_secs(240);
/// No step begins later: the stage as a whole has a limit, too.
const TIME: Duration = Duration::from_mins(30);
/// For those who came last to have begun.
const REST: Duration = Duration::from_secs(5);
/// For a look at what so many cost.
const WINDOW: Duration = Duration::from_secs(15);
/// For a step's agents to be connected after their ramp, and for all to settle.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the machine keeps for everything else.
const LEAST_MIB: u64 = 1_500;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Far {
    pub goal: u32,
    pub steps: Vec<Step>,
    /// Why it went no further.
    pub stopped: String,
    pub offline: u64,
    pub acked: u64,
}

/// What it cost with so many agents.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Step {
    pub agents: u32,
    pub instances: usize,
    pub per_second: f64,
    pub service_cores: f64,
    pub postgres_cores: f64,
    pub fleet_cores: f64,
    /// The worst of the fleet's parts.
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

pub async fn run(sizes: &Sizes) -> anyhow::Result<Far> {
    let lab = Lab::start(Settings {
        instances: 1,
        interval: INTERVAL,
        durable: true,
        variables: vec![],
    });
    let mut climb = Climb {
        lab: lab.await?,
        fleets: vec![],
        step: sizes.far_step,
        ramp: sizes.ramp(sizes.far_step),
    };
    let (began, mut steps) = (Instant::now(), Vec::<Step>::new());
    let stopped = loop {
        if let Err(error) = climb.grow().await {
            break format!("{} more could not connect: {error:#}", climb.step);
        }
        steps.push(climb.measure().await?);
        if let Some(why) = enough(&steps, sizes.far_goal, began.elapsed()) {
            break why;
        }
    };
    note(&stopped);
    let offline = climb.lab.times_offline().await?;
    let books = climb.finish().await?;
    anyhow::ensure!(books.balance(), "the books do not balance: {books:?}");
    Ok(Far {
        goal: sizes.far_goal,
        steps,
        stopped,
        offline,
        acked: books.acked,
    })
}

/// Whether to stop here: at the goal, or where another step like the last would not fit.
fn enough(steps: &[Step], goal: u32, so_far: Duration) -> Option<String> {
    let last = steps.last()?;
    if last.agents >= goal {
        return Some("the goal was reached".into());
    }
    if so_far > TIME {
        return Some(format!("{} minutes were used up", TIME.as_secs() / 60));
    }
    let before = steps.iter().rev().nth(1).map(|step| step.available_mib);
    let taken = before.map_or(0, |before| before.saturating_sub(last.available_mib));
    (last.available_mib < taken + LEAST_MIB).then(|| {
        format!(
            "memory: {} MiB are left, and a step takes {taken}",
            last.available_mib
        )
    })
}

impl Climb {
    /// One more instance, and agents that come to it alone.
    async fn grow(&mut self) -> anyhow::Result<()> {
        if !self.fleets.is_empty() {
            self.lab.add_instance().await?;
        }
        let newest = self.lab.instances.last().map(|instance| instance.grpc);
        let plan = Plan {
            first: self.agents(),
            ramp: self.ramp,
            ..Plan::local(
                self.step,
                newest.into_iter().collect(),
                self.lab.token(self.step).await?,
            )
        };
        self.fleets.push(Fleet::start(plan, 1)?);
        for fleet in &self.fleets {
            fleet.all_connected(self.ramp + PATIENCE).await?;
        }
        Ok(())
    }

    fn agents(&self) -> u32 {
        self.fleets.len() as u32 * self.step
    }

    async fn measure(&self) -> anyhow::Result<Step> {
        sleep(REST).await;
        for fleet in &self.fleets {
            fleet.open_window();
        }
        let (before, began) = (self.look().await?, Instant::now());
        sleep(WINDOW).await;
        let (after, seconds) = (self.look().await?, began.elapsed().as_secs_f64());
        let cores = |us: u64| us as f64 / 1e6 / seconds;
        let fleet = |totals: &[Totals], value: fn(&Totals) -> u64| -> u64 {
            totals.iter().map(value).sum()
        };
        let grown = |value: fn(&Totals) -> u64| fleet(&after.1, value) - fleet(&before.1, value);
        let p99 = |totals: &Totals| Quantiles::of(&totals.window.ack).p99_ms;
        let step = Step {
            agents: self.agents(),
            instances: self.lab.instances.len(),
            per_second: grown(|totals| totals.counts.reports_acked) as f64 / seconds,
            service_cores: cores(after.0.services.cpu_us - before.0.services.cpu_us),
            postgres_cores: cores(after.0.postgres.cpu_us - before.0.postgres.cpu_us),
            fleet_cores: cores(grown(|totals| totals.cpu_us)),
            p99_ms: after.1.iter().map(p99).fold(0.0, f64::max),
            service_mib: after.0.services.rss_kib / 1024,
            fleet_mib: fleet(&after.1, |totals| totals.rss_kib) / 1024,
            available_mib: proc::available_mib(),
        };
        note(&format!("{step:?}"));
        Ok(step)
    }

    async fn look(&self) -> anyhow::Result<(Spent, Vec<Totals>)> {
        let spent = self.lab.spent().await?;
        Ok((spent, self.fleets.iter().map(Fleet::totals).collect()))
    }

    /// Settles all, and holds their books together against the database.
    async fn finish(self) -> anyhow::Result<Books> {
        let agents = self.fleets.iter().map(Fleet::agents).sum();
        for fleet in &self.fleets {
            fleet.order(|orders| orders.quiet = true)?;
        }
        for fleet in &self.fleets {
            fleet.settle(PATIENCE).await?;
        }
        let mut all: Option<Outcome> = None;
        for fleet in self.fleets {
            let outcome = fleet.finish().await?;
            match &mut all {
                Some(all) => all.balances.extend(outcome.balances),
                None => all = Some(outcome),
            }
        }
        let all = all.ok_or_else(|| anyhow::anyhow!("nobody came"))?;
        Books::of(&all, Some(&self.lab.database_url()), agents).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(agents: u32, available_mib: u64) -> Step {
        Step {
            agents,
            instances: 1,
            per_second: 0.0,
            service_cores: 0.0,
            postgres_cores: 0.0,
            fleet_cores: 0.0,
            p99_ms: 0.0,
            service_mib: 0,
            fleet_mib: 0,
            available_mib,
        }
    }

    #[test]
    fn it_stops_at_the_goal_and_before_memory_or_time_is_used_up() {
        let steps = [step(10, 9_000), step(20, 7_000)];
        let soon = Duration::from_mins(5);
        assert_eq!(enough(&steps, 100, soon), None);
        assert!(enough(&steps, 20, soon).is_some());
        assert!(enough(&steps, 100, TIME * 2).is_some());
        let steps = [step(10, 5_000), step(20, 3_000)];
        assert!(enough(&steps, 100, soon).is_some_and(|why| why.contains("memory")));
    }
}
