//! Runs a scenario: starts the lab and the fleet, does each step, and checks the expectations.

use std::{
    io::{Write, stderr},
    time::Duration,
};

use anyhow::Context;
use rustix::process::Signal;
use svc_testkit::AuditReport;
use tokio::time::sleep;

use super::{
    Scenario, Step,
    expectations::{Check, Observations},
};
use crate::{
    fleet::{Fleet, Totals, format_time},
    lab::{Lab, Settings},
    plan::{Away, Plan},
};

const AGENTS_PER_INSTANCE: u32 = 18_000;
/// Longer than any step may take. The scenario's own limits are checked at its end.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Acknowledgements of commits from before the fault may still arrive for this long, and workers send their
/// counts only twice a second.
const ACK_DELAY: Duration = Duration::from_secs(3);

struct Runner<'a> {
    scenario: &'a Scenario,
    lab: Lab,
    fleet: Fleet,
    slowest_back: Duration,
    slowest_exit: Duration,
    acked_while_down: u64,
    copies: u64,
    statements_before: u64,
}

pub async fn run(scenario: &Scenario) -> anyhow::Result<Vec<Check>> {
    let lab = Lab::start(Settings {
        instances: instances(scenario),
        interval: scenario.interval,
        durable: false,
    })
    .await?;
    let plan = plan(scenario, &lab).await?;
    let fleet = Fleet::start(plan, 0)?;
    let connected = fleet.all_connected(scenario.ramp + STEP_TIMEOUT).await?;
    note(&format!(
        "{} agents connected after {}",
        scenario.agents,
        format_time(connected)
    ));
    let connected = connected.saturating_sub(scenario.ramp);
    fleet.open_window();
    let statements_before = lab.statements().await?;
    let mut runner = Runner {
        scenario,
        lab,
        fleet,
        slowest_back: Duration::ZERO,
        slowest_exit: Duration::ZERO,
        acked_while_down: 0,
        copies: 0,
        statements_before,
    };
    for step in &scenario.steps {
        runner
            .step(*step)
            .await
            .with_context(|| format!("{step:?}"))?;
    }
    runner.finish(connected).await
}

fn instances(scenario: &Scenario) -> usize {
    let needed = scenario.agents.div_ceil(AGENTS_PER_INSTANCE);
    scenario.instances.max(needed) as usize
}

async fn plan(scenario: &Scenario, lab: &Lab) -> anyhow::Result<Plan> {
    let token = lab.token(scenario.agents).await?;
    Ok(Plan {
        ramp: scenario.ramp,
        skew: scenario.skew,
        ..Plan::local(scenario.agents, lab.targets(), token)
    })
}

impl Runner<'_> {
    async fn step(&mut self, step: Step) -> anyhow::Result<()> {
        note(&format!("{step:?}; {}", self.fleet.totals().line()));
        match step {
            Step::Watch { time } => sleep(time).await,
            Step::Cut => self.fleet.order(|orders| orders.cuts += 1)?,
            Step::Kill { instance } => self.kill(instance).await?,
            Step::RollingRestart => self.rolling_restart().await?,
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

    async fn all_back(&mut self) -> anyhow::Result<()> {
        let mark = self.fleet.mark()?;
        let took = self.fleet.all_back(mark, STEP_TIMEOUT).await?;
        note(&format!(
            "all back and acknowledged after {}",
            format_time(took)
        ));
        self.slowest_back = self.slowest_back.max(took);
        Ok(())
    }

    async fn kill(&mut self, instance: usize) -> anyhow::Result<()> {
        let instance = self.lab.instances.get_mut(instance);
        let instance = instance.context("no such instance")?;
        instance.stop(Signal::KILL).await.map(drop)
    }

    /// The next instance is restarted when the one before is healthy and all agents are back.
    async fn rolling_restart(&mut self) -> anyhow::Result<()> {
        for index in 0..self.lab.instances.len() {
            let took = self.lab.instances[index].stop(Signal::TERM).await?;
            self.slowest_exit = self.slowest_exit.max(took);
            self.lab.restart(index).await?;
            self.all_back().await?;
        }
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
        self.acked_while_down += self.fleet.totals().counts.acked - before;
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
        self.copies += copies;
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

    async fn finish(self, connected: Duration) -> anyhow::Result<Vec<Check>> {
        self.fleet.settle(STEP_TIMEOUT).await?;
        let offline = self.lab.times_offline().await?;
        let statements = self
            .lab
            .statements()
            .await?
            .saturating_sub(self.statements_before);
        let agents = self.fleet.agents();
        let outcome = self.fleet.finish().await?;
        let url = self.lab.database_url();
        let books = AuditReport::of(&outcome.balances, Some(&url), agents).await?;
        Ok(self.scenario.expectations.checks(&Observations {
            agents,
            connected,
            slowest_back: self.slowest_back,
            slowest_exit: self.slowest_exit,
            acked_while_down: self.acked_while_down,
            copies: self.copies,
            offline,
            statements,
            totals: outcome.totals,
            books,
        }))
    }
}

/// Progress goes to standard error; the result goes to standard output.
fn note(text: &str) {
    let _ = writeln!(stderr(), "  {text}");
}
