//! Plays a scenario: starts the lab and the fleet, does each step, and looks what held.

use std::{
    io::{Write, stderr},
    time::Duration,
};

use anyhow::Context;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    Scenario, Step,
    must::{Check, Seen},
};
use crate::{
    fleet::{Fleet, shown},
    lab::{Lab, Settings},
    plan::{Away, Plan},
    run::audit::Books,
};

const AGENTS_PER_INSTANCE: u32 = 18_000;
/// Longer than anything may take: what a scenario asks for is checked at its end.
const PATIENCE: Duration = Duration::from_secs(300);
/// What was committed before a fault may still be on its way, and workers tell twice a second.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

struct Stage<'a> {
    scenario: &'a Scenario,
    lab: Lab,
    fleet: Fleet,
    slowest_back: Duration,
    slowest_exit: Duration,
    acked_while_away: u64,
    copies: u64,
    statements: u64,
}

pub async fn play(scenario: &Scenario) -> anyhow::Result<Vec<Check>> {
    let lab = Lab::start(Settings {
        instances: instances(scenario),
        interval: scenario.interval,
        durable: false,
        variables: vec![],
    })
    .await?;
    let plan = plan(scenario, &lab).await?;
    let fleet = Fleet::start(plan, 0)?;
    let connected = fleet.all_connected(scenario.ramp + PATIENCE).await?;
    note(&format!(
        "{} agents connected after {}",
        scenario.agents,
        shown(connected)
    ));
    let connected = connected.saturating_sub(scenario.ramp);
    fleet.open_window();
    let statements = lab.statements().await?;
    let mut stage = Stage {
        scenario,
        lab,
        fleet,
        slowest_back: Duration::ZERO,
        slowest_exit: Duration::ZERO,
        acked_while_away: 0,
        copies: 0,
        statements,
    };
    for step in &scenario.steps {
        stage
            .step(*step)
            .await
            .with_context(|| format!("{step:?}"))?;
    }
    stage.end(connected).await
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

impl Stage<'_> {
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
        let took = self.fleet.all_back(mark, PATIENCE).await?;
        note(&format!("all back and acknowledged after {}", shown(took)));
        self.slowest_back = self.slowest_back.max(took);
        Ok(())
    }

    async fn kill(&mut self, instance: usize) -> anyhow::Result<()> {
        let victim = self
            .lab
            .instances
            .get(instance)
            .context("no such instance")?;
        victim.signal(Signal::KILL)?;
        victim.wait_for_end().await.map(drop)
    }

    /// The next goes when the one before is back and everybody is acknowledged.
    async fn rolling_restart(&mut self) -> anyhow::Result<()> {
        for index in 0..self.lab.instances.len() {
            let instance = &self.lab.instances[index];
            instance.signal(Signal::TERM)?;
            let took = instance.wait_for_end().await?;
            self.slowest_exit = self.slowest_exit.max(took);
            self.lab.start_again(index).await?;
            self.all_back().await?;
        }
        Ok(())
    }

    async fn freeze_database(&mut self, time: Duration) -> anyhow::Result<()> {
        self.lab.postgres.freeze()?;
        self.count_while_away(time).await;
        self.lab.postgres.thaw()
    }

    async fn stop_database(&mut self, time: Duration) -> anyhow::Result<()> {
        self.lab.postgres.stop_immediate().await?;
        self.count_while_away(time).await;
        self.lab.postgres.start_again().await
    }

    async fn count_while_away(&mut self, time: Duration) {
        sleep(ON_ITS_WAY.min(time)).await;
        let before = self.fleet.totals().counts.acked;
        sleep(time.saturating_sub(ON_ITS_WAY)).await;
        self.acked_while_away += self.fleet.totals().counts.acked - before;
    }

    async fn churn(&mut self, stay: Duration, time: Duration) -> anyhow::Result<()> {
        self.fleet.order(|orders| orders.churn = Some(stay))?;
        sleep(time).await;
        self.fleet.order(|orders| orders.churn = None)
    }

    /// Every copy is refused, welcomed, or met an error: all are waited for.
    async fn copy(&mut self, share: f64) -> anyhow::Result<()> {
        let copies = (f64::from(self.scenario.agents) * share).ceil() as u64;
        self.fleet.order(|orders| orders.copies = share)?;
        self.copies += copies;
        let answered = |totals: &crate::fleet::Totals| {
            let errors = totals.errors.iter();
            let errors = errors.filter(|(reason, _)| reason.starts_with("copy:"));
            let failed: u64 = errors.map(|(_, count)| count).sum();
            totals.counts.copies_refused + totals.counts.copies_welcomed + failed >= copies
        };
        let waited = self
            .fleet
            .until("every copy has its answer", PATIENCE, answered);
        waited.await.map(drop)
    }

    async fn backfill(&mut self, away: Away) -> anyhow::Result<()> {
        self.fleet.order(|orders| orders.away = Some(away))?;
        let gone = |totals: &crate::fleet::Totals| totals.counts.connected == 0;
        self.fleet.until("all are away", PATIENCE, gone).await?;
        self.fleet.order(|orders| orders.away = None)
    }

    async fn end(self, connected: Duration) -> anyhow::Result<Vec<Check>> {
        self.fleet.settle(PATIENCE).await?;
        let offline = self.lab.times_offline().await?;
        let statements = self.lab.statements().await?.saturating_sub(self.statements);
        let agents = self.fleet.agents();
        let outcome = self.fleet.finish().await?;
        let url = self.lab.database_url();
        let books = Books::of(&outcome, Some(&url), agents).await?;
        Ok(self.scenario.must.checks(&Seen {
            agents,
            connected,
            slowest_back: self.slowest_back,
            slowest_exit: self.slowest_exit,
            acked_while_away: self.acked_while_away,
            copies: self.copies,
            offline,
            statements,
            totals: outcome.totals,
            books,
        }))
    }
}

/// For who watches; the verdict is on standard output.
fn note(text: &str) {
    let _ = writeln!(stderr(), "  {text}");
}
