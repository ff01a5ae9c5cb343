//! Runs a scenario: starts the lab and the fleet, does each step, and checks the expectations.

use std::{
    io::{Write, stderr},
    time::Duration,
};

use anyhow::Context;
use rustix::process::Signal;
use svc_testkit::{AuditReport, documented_memory};
use tokio::time::sleep;

use super::{
    Scenario, Step,
    expectations::{Check, Observations},
    history,
};
use crate::{
    fleet::{Fleet, Totals, format_time},
    lab::{self, Lab, PREVIOUS_VERSION, Settings, THIS_VERSION},
    plan::{Away, Plan},
};

/// Longer than any step may take, apart from a backlog. The scenario's own limits are checked at its end.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Samples that a small machine stores in a second beside its other work.
const STORED_PER_SECOND: u64 = 3_000;
/// Acknowledgements of commits from before the fault may still arrive for this long, and workers send their
/// counts only twice a second.
const ACK_DELAY: Duration = Duration::from_secs(3);

struct Runner<'a> {
    scenario: &'a Scenario,
    lab: Lab,
    fleet: Fleet,
    observed: Observations,
    statements_before: u64,
}

pub async fn run(scenario: &Scenario) -> anyhow::Result<Vec<Check>> {
    let lab = start_lab(scenario).await?;
    let plan = Plan {
        ramp: scenario.ramp,
        skew: scenario.skew,
        ..lab.plan(scenario.agents).await?
    };
    let fleet = Fleet::start(plan, 0)?;
    let connected = fleet.all_connected(scenario.ramp + STEP_TIMEOUT).await?;
    note(&format!(
        "{} agents connected after {}",
        scenario.agents,
        format_time(connected)
    ));
    fleet.open_window();
    let mut runner = Runner {
        scenario,
        statements_before: lab.statements().await?,
        lab,
        observed: Observations {
            agents: fleet.agents(),
            connected: connected.saturating_sub(scenario.ramp),
            ..Observations::default()
        },
        fleet,
    };
    for step in &scenario.steps {
        runner
            .step(*step)
            .await
            .with_context(|| format!("{step:?}"))?;
    }
    runner.finish().await
}

async fn start_lab(scenario: &Scenario) -> anyhow::Result<Lab> {
    let mut lab = Lab::start(Settings {
        instances: 0,
        interval: scenario.interval,
        durable: false,
    })
    .await?;
    if scenario.from_previous {
        lab.set_program(PREVIOUS_VERSION);
    }
    for _ in 0..lab::instances_for(scenario.agents).max(scenario.instances as usize) {
        lab.add_instance().await?;
    }
    Ok(lab)
}

impl Runner<'_> {
    async fn step(&mut self, step: Step) -> anyhow::Result<()> {
        note(&format!("{step:?}; {}", self.fleet.totals().line()));
        match step {
            Step::Watch { time } => sleep(time).await,
            Step::Cut => self.fleet.order(|orders| orders.cuts += 1)?,
            Step::Kill { instance } => self.kill(instance).await?,
            Step::RollingRestart => self.rolling_restart().await?,
            Step::RestartAll { kill } => self.restart_all(kill).await?,
            Step::FillHistory { samples } => self.fill_history(samples).await?,
            Step::Upgrade => self.replace(THIS_VERSION).await?,
            Step::Rollback => self.replace(PREVIOUS_VERSION).await?,
            Step::FreezeDatabase { time } => self.freeze_database(time).await?,
            Step::StopDatabase { time } => self.stop_database(time).await?,
            Step::Churn { stay, time } => self.churn(stay, time).await?,
            Step::Copy { share } => self.copy(share).await?,
            Step::Backfill { samples, span } => self.backfill(Away { samples, span }).await?,
        }
        match step {
            Step::Watch { .. } => Ok(()),
            _ => self.all_back().await,
        }
    }

    /// How long the agents may take to come back and to deliver their backlogs.
    fn patience(&self) -> Duration {
        let backlog = self.scenario.expectations.backfilled.unwrap_or(0);
        let samples = backlog * u64::from(self.scenario.agents);
        STEP_TIMEOUT + Duration::from_secs(samples / STORED_PER_SECOND)
    }

    async fn all_back(&mut self) -> anyhow::Result<()> {
        let mark = self.fleet.mark()?;
        let took = self.fleet.all_back(mark, self.patience()).await?;
        note(&format!(
            "all back and acknowledged after {}",
            format_time(took)
        ));
        self.observed.slowest_back = self.observed.slowest_back.max(took);
        Ok(())
    }

    async fn kill(&mut self, instance: usize) -> anyhow::Result<()> {
        let instance = self.lab.instances.get(instance);
        instance.context("no such instance")?.kill().await
    }

    /// The next instance is restarted when the one before is healthy and all agents are back.
    async fn rolling_restart(&mut self) -> anyhow::Result<()> {
        for index in 0..self.lab.instances.len() {
            let took = self.lab.restart(index).await?;
            self.observed.slowest_exit = self.observed.slowest_exit.max(took);
            self.all_back().await?;
        }
        Ok(())
    }

    async fn restart_all(&mut self, kill: bool) -> anyhow::Result<()> {
        let signal = if kill { Signal::KILL } else { Signal::TERM };
        let took = self.lab.restart_all(signal).await?;
        note(&format!("all serve again after {}", format_time(took)));
        self.observed.slowest_start = self.observed.slowest_start.max(took);
        Ok(())
    }

    async fn replace(&mut self, program: &'static str) -> anyhow::Result<()> {
        self.lab.set_program(program);
        self.rolling_restart().await?;
        let took = history::check(&self.lab, self.observed.history).await?;
        note(&format!(
            "{} samples of history, of one host read in {}",
            self.observed.history,
            format_time(took)
        ));
        Ok(())
    }

    async fn fill_history(&mut self, samples: u32) -> anyhow::Result<()> {
        self.observed.history += history::fill(&self.lab, self.scenario.agents, samples).await?;
        // Acknowledgements that waited for this are not what a scenario measures.
        self.all_back().await?;
        self.fleet.open_window();
        Ok(())
    }

    async fn freeze_database(&mut self, time: Duration) -> anyhow::Result<()> {
        self.lab.postgres.freeze()?;
        self.count_acks_while_down(time).await;
        self.lab.postgres.thaw()
    }

    async fn stop_database(&mut self, time: Duration) -> anyhow::Result<()> {
        self.lab.postgres.stop_immediate().await?;
        self.count_acks_while_down(time).await;
        self.lab.postgres.start_again().await
    }

    async fn count_acks_while_down(&mut self, time: Duration) {
        sleep(ACK_DELAY.min(time)).await;
        let before = self.fleet.totals().counts.acked;
        sleep(time.saturating_sub(ACK_DELAY)).await;
        self.observed.acked_while_down += self.fleet.totals().counts.acked - before;
    }

    async fn churn(&mut self, stay: Duration, time: Duration) -> anyhow::Result<()> {
        self.fleet.order(|orders| orders.churn = Some(stay))?;
        sleep(time).await;
        self.fleet.order(|orders| orders.churn = None)
    }

    /// Waits until every clone was refused or welcomed, or has failed.
    async fn copy(&mut self, share: f64) -> anyhow::Result<()> {
        let copies = (f64::from(self.scenario.agents) * share).ceil() as u64;
        self.fleet.order(|orders| orders.copies = share)?;
        self.observed.copies += copies;
        let answered = |totals: &Totals| {
            let errors = totals.errors.iter();
            let errors = errors.filter(|(reason, _)| reason.starts_with("copy:"));
            let failed: u64 = errors.map(|(_, count)| count).sum();
            totals.counts.copies_refused + totals.counts.copies_welcomed + failed >= copies
        };
        let waited = self
            .fleet
            .until("every clone has an answer", STEP_TIMEOUT, answered);
        waited.await.map(drop)
    }

    async fn backfill(&mut self, away: Away) -> anyhow::Result<()> {
        self.fleet.order(|orders| orders.away = Some(away))?;
        let away = |totals: &Totals| totals.counts.connected == 0;
        self.fleet
            .until("all agents are disconnected", STEP_TIMEOUT, away)
            .await?;
        self.fleet.order(|orders| orders.away = None)
    }

    async fn finish(self) -> anyhow::Result<Vec<Check>> {
        self.fleet.settle(self.patience()).await?;
        let offline = self.lab.times_offline().await?;
        let memory = self.lab.peak_memory()?;
        let each = self
            .observed
            .agents
            .div_ceil(self.lab.instances.len() as u64);
        let statements = self.lab.statements().await?;
        let outcome = self.fleet.finish().await?;
        let url = self.lab.database_url();
        let agents = self.observed.agents;
        let books = AuditReport::of(&outcome.balances, Some(&url), agents).await?;
        Ok(self.scenario.expectations.checks(&Observations {
            offline,
            statements: statements.saturating_sub(self.statements_before),
            memory,
            documented_memory: documented_memory(each),
            totals: outcome.totals,
            books,
            ..self.observed
        }))
    }
}

/// Progress goes to standard error; the result goes to standard output.
fn note(text: &str) {
    let _ = writeln!(stderr(), "  {text}");
}
