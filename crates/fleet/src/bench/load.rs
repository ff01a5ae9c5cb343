//! A load on a subject, and what it costs while it lasts.
//!
//! A measurement is two looks at everything with a window between them: CPU of the processes, bytes of
//! WAL, statements, and acknowledgements of the fleet. Workers tell twice a second, at both ends alike.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{note, subject::Subject};
use crate::{
    fleet::{Fleet, Totals},
    lab::Spent,
    plan::{Plan, Task},
    run::{audit::Books, report::Quantiles},
};

/// For all to be connected after the ramp is over.
const PATIENCE: Duration = Duration::from_secs(300);
/// For allocators and caches to come to rest before a look at memory.
const REST: Duration = Duration::from_secs(5);

/// What a heartbeat cost, and how it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub agents: u32,
    pub seconds: f64,
    pub heartbeats: u64,
    pub per_second: f64,
    /// Microseconds of CPU a heartbeat.
    pub service_us: f64,
    pub postgres_us: f64,
    pub fleet_us: f64,
    /// Cores that the services and PostgreSQL kept busy.
    pub cores: f64,
    pub wal_bytes: f64,
    pub statements: f64,
    pub ack: Quantiles,
    /// Of the subject's processes, without what they took before any agent came.
    pub kib_per_agent: f64,
    pub fleet_kib_per_agent: f64,
}

/// Agents connected to a subject.
#[derive(Debug)]
pub struct Load {
    pub subject: Subject,
    pub fleet: Fleet,
    /// The subject's memory before any agent came.
    base_kib: u64,
    _state: TempDir,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub agents: u32,
    pub interval: Duration,
    pub ramp: Duration,
    pub closed_loop: bool,
    pub spread: bool,
}

impl Load {
    /// Registers the agents first, and then begins with processes that have seen none of them: what is
    /// measured is agents that come back, as they do in all their life but its first minute.
    pub async fn start(mut subject: Subject, shape: Shape) -> anyhow::Result<Load> {
        let state = tempfile::tempdir()?;
        let token = subject.token(shape.agents).await?;
        let enrolling = Plan {
            spread: shape.spread,
            interval: Some(shape.interval),
            ramp: shape.ramp,
            closed_loop: shape.closed_loop,
            state: Some(state.path().to_owned()),
            task: Task::Enrol,
            ..Plan::local(shape.agents, subject.targets(), token)
        };
        enrol(enrolling.clone()).await?;
        subject.start_again().await?;
        sleep(REST).await;
        let base_kib = subject.spent().await?.services.rss_kib;
        let fleet = Fleet::start(
            Plan {
                task: Task::Report,
                ..enrolling
            },
            0,
        )?;
        let took = fleet.all_connected(shape.ramp + PATIENCE).await?;
        note(&format!(
            "{} agents connected after {took:.1?}",
            shape.agents
        ));
        sleep(REST).await;
        Ok(Load {
            subject,
            fleet,
            base_kib,
            _state: state,
        })
    }

    /// What all agents together have made of the subject's memory.
    pub async fn kib_per_agent(&self) -> anyhow::Result<f64> {
        let now = self.subject.spent().await?.services.rss_kib;
        Ok(now.saturating_sub(self.base_kib) as f64 / self.fleet.agents() as f64)
    }

    pub async fn pace(&self, interval: Duration) -> anyhow::Result<()> {
        self.fleet
            .order(|orders| orders.interval = Some(interval))?;
        // Until every agent has come to its first tick at the new pace.
        sleep(interval.min(Duration::from_secs(30)) + REST).await;
        Ok(())
    }

    /// What heartbeats cost in the next `window`.
    pub async fn measure(&self, window: Duration) -> anyhow::Result<Cost> {
        self.fleet.open_window();
        let before = self.look().await?;
        sleep(window).await;
        let after = self.look().await?;
        let cost = self.cost(&before, &after).await?;
        note(&format!(
            "{:.0} heartbeats/s: service {:.1} µs, PostgreSQL {:.1} µs, p99 {:.1} ms",
            cost.per_second, cost.service_us, cost.postgres_us, cost.ack.p99_ms
        ));
        Ok(cost)
    }

    async fn look(&self) -> anyhow::Result<(Instant, Spent, Totals)> {
        let spent = self.subject.spent().await?;
        Ok((Instant::now(), spent, self.fleet.totals()))
    }

    async fn cost(
        &self,
        (began, spent, told): &(Instant, Spent, Totals),
        (ended, spends, tells): &(Instant, Spent, Totals),
    ) -> anyhow::Result<Cost> {
        let seconds = (*ended - *began).as_secs_f64();
        let heartbeats = tells.counts.reports_acked - told.counts.reports_acked;
        let each = |amount: u64| amount as f64 / heartbeats.max(1) as f64;
        let service = spends.services.cpu_us - spent.services.cpu_us;
        let postgres = spends.postgres.cpu_us - spent.postgres.cpu_us;
        Ok(Cost {
            agents: self.fleet.plan.agents,
            seconds,
            heartbeats,
            per_second: heartbeats as f64 / seconds,
            service_us: each(service),
            postgres_us: each(postgres),
            fleet_us: each(tells.cpu_us - told.cpu_us),
            cores: (service + postgres) as f64 / 1e6 / seconds,
            wal_bytes: each(spends.wal_bytes - spent.wal_bytes),
            statements: each(spends.statements - spent.statements),
            ack: Quantiles::of(&tells.window.ack),
            kib_per_agent: self.kib_per_agent().await?,
            fleet_kib_per_agent: tells.rss_kib as f64 / self.fleet.agents() as f64,
        })
    }

    /// Settles, and holds the books against the database where there is one.
    pub async fn finish(self) -> anyhow::Result<(Subject, Books)> {
        self.fleet.settle(PATIENCE).await?;
        let (agents, url) = (self.fleet.agents(), self.subject.database_url());
        let outcome = self.fleet.finish().await?;
        let books = Books::of(&outcome, url.as_deref(), agents).await?;
        anyhow::ensure!(books.balance(), "the books do not balance: {books:?}");
        Ok((self.subject, books))
    }
}

/// Registers all agents of a plan; how long that took.
pub async fn enrol(plan: Plan) -> anyhow::Result<Duration> {
    let (agents, patience) = (u64::from(plan.agents), plan.ramp + PATIENCE);
    let fleet = Fleet::start(plan, 0)?;
    let all = |totals: &Totals| totals.counts.registered >= agents;
    let took = fleet.until("all are registered", patience, all).await?;
    fleet.finish().await?;
    Ok(took)
}
