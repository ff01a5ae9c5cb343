//! A fleet under which a system is measured, and the cost of its heartbeats.
//!
//! A measurement takes two readings with a window between them and divides the differences by the number
//! of heartbeats in the window. A reading has the CPU time of the instances and of PostgreSQL with all its
//! backends (from /proc, see [`crate::procfs`]), the WAL position, the number of SQL statements, and the
//! counts of the fleet. CPU time is used instead of wall time or load, because the service, PostgreSQL and
//! the fleet share the machine: only the CPU time of a process tells what that process used.
//!
//! Two errors remain, and both are the same for the service and its baselines. Workers send their counts
//! only twice a second, so the number of heartbeats is up to half a second old at both ends of the window.
//! And background work (autovacuum, checkpoints, leases) is divided among the heartbeats of the window.

use std::time::Duration;

use svc_harness::AuditReport;
use svc_proto::contract::limits::REPORT_INTERVAL;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{
    sizes::ramp,
    system::{System, SystemKind},
};
use crate::{
    fleet::{Fleet, Totals, note},
    lab::ResourceUsage,
    plan::Plan,
    stats::Quantiles,
};

/// For all agents to connect after the ramp, and for all samples to be acknowledged at the end.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// As fast as the service lets an agent report.
pub const FASTEST: Duration = REPORT_INTERVAL;
/// So long that no agent reports while memory is read.
pub const IDLE: Duration = Duration::from_mins(55);
/// For allocators and caches to settle before memory is read. What a small fleet leaves behind is no matter.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// The cost of a heartbeat, and the load under which it was measured.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatCost {
    pub per_second: f64,
    /// Microseconds of CPU time per heartbeat.
    pub service_us: f64,
    pub postgres_us: f64,
    /// Of the agents, which do the same in every measurement: this shows how fast the machine was.
    pub fleet_us: f64,
    pub wal_bytes: f64,
    pub statements: f64,
    pub ack: Quantiles,
    /// Memory of the system's processes, without what they used before the first agent.
    pub kib_per_agent: f64,
}

/// The columns of [`HeartbeatCost::figures`].
pub const COLUMNS: [&str; 8] = [
    "heartbeats/s",
    "PostgreSQL µs",
    "WAL bytes",
    "service µs",
    "agents µs",
    "statements",
    "ack p50 ms",
    "p99 ms",
];

impl HeartbeatCost {
    pub fn figures(&self) -> Vec<f64> {
        vec![
            self.per_second,
            self.postgres_us,
            self.wal_bytes,
            self.service_us,
            self.fleet_us,
            self.statements,
            self.ack.p50_ms,
            self.ack.p99_ms,
        ]
    }

    /// CPU time of PostgreSQL per second of wall time.
    pub fn postgres_cores(&self) -> f64 {
        self.postgres_us * self.per_second / 1e6
    }
}

/// A fleet that is connected to a system.
#[derive(Debug)]
pub struct Load {
    pub system: System,
    pub fleet: Fleet,
    /// The system's memory before the first agent.
    base_kib: u64,
    _state: TempDir,
}

/// What is read at each end of a measurement.
struct Reading {
    at: Instant,
    usage: ResourceUsage,
    fleet: Totals,
}

impl Load {
    /// Starts a system, registers agents that report in this interval, restarts the system, and connects the agents.
    ///
    /// After the restart the processes have not seen any agent. So their memory is a clean base, and the
    /// measurement is about agents that reconnect, which is what agents do except for their first minute.
    pub async fn start(kind: SystemKind, agents: u32, each: Duration) -> anyhow::Result<Load> {
        let mut system = System::start(kind).await?;
        let state = tempfile::tempdir()?;
        let plan = Plan {
            interval: Some(each),
            ramp: ramp(agents),
            closed_loop: each == FASTEST || each == IDLE,
            state: Some(state.path().to_owned()),
            ..system.plan(agents).await?
        };
        let (limit, settle_time) = (plan.ramp + TIMEOUT, SETTLE_TIME.min(plan.ramp));
        enrol(plan.clone()).await?;
        system.restart().await?;
        sleep(settle_time).await;
        let base_kib = system.usage().await?.services.rss_kib;
        let fleet = Fleet::start(plan, 0)?;
        let took = fleet.all_connected(limit).await?;
        note(&format!("{agents} agents connected after {took:.1?}"));
        sleep(settle_time).await;
        Ok(Load {
            system,
            fleet,
            base_kib,
            _state: state,
        })
    }

    /// Memory that the system has gained since before the first agent, per agent.
    pub async fn kib_per_agent(&self) -> anyhow::Result<f64> {
        Ok(self.gained_kib(&self.system.usage().await?))
    }

    fn gained_kib(&self, usage: &ResourceUsage) -> f64 {
        let gained = usage.services.rss_kib.saturating_sub(self.base_kib);
        gained as f64 / self.fleet.agents() as f64
    }

    pub async fn set_interval(&self, interval: Duration) -> anyhow::Result<()> {
        self.fleet
            .order(|orders| orders.interval = Some(interval))?;
        // Until every agent has reported at the new interval.
        sleep(interval.min(Duration::from_secs(30)) + SETTLE_TIME).await;
        Ok(())
    }

    /// Measures the cost of the heartbeats in the next `window`.
    pub async fn measure(&self, window: Duration) -> anyhow::Result<HeartbeatCost> {
        self.fleet.open_window();
        let before = self.read().await?;
        sleep(window).await;
        let after = self.read().await?;
        let cost = self.cost(&before, &after);
        note(&format!(
            "{:.0} heartbeats/s: service {:.1} µs, PostgreSQL {:.1} µs, p99 {:.1} ms",
            cost.per_second, cost.service_us, cost.postgres_us, cost.ack.p99_ms
        ));
        Ok(cost)
    }

    async fn read(&self) -> anyhow::Result<Reading> {
        Ok(Reading {
            usage: self.system.usage().await?,
            at: Instant::now(),
            fleet: self.fleet.totals(),
        })
    }

    fn cost(&self, before: &Reading, after: &Reading) -> HeartbeatCost {
        let seconds = (after.at - before.at).as_secs_f64();
        let heartbeats = after.fleet.counts.reports_acked - before.fleet.counts.reports_acked;
        let each = |amount: u64| amount as f64 / heartbeats.max(1) as f64;
        HeartbeatCost {
            per_second: heartbeats as f64 / seconds,
            service_us: each(after.usage.services.cpu_us - before.usage.services.cpu_us),
            postgres_us: each(after.usage.postgres.cpu_us - before.usage.postgres.cpu_us),
            fleet_us: each(after.fleet.cpu_us - before.fleet.cpu_us),
            wal_bytes: each(after.usage.wal_bytes - before.usage.wal_bytes),
            statements: each(after.usage.statements - before.usage.statements),
            ack: Quantiles::of(&after.fleet.window.ack),
            kib_per_agent: self.gained_kib(&after.usage),
        }
    }

    /// Waits for all acknowledgements, ends the fleet, and audits the database if there is one.
    pub async fn finish(self) -> anyhow::Result<System> {
        self.fleet.settle(TIMEOUT).await?;
        let (agents, url) = (self.fleet.agents(), self.system.database_url());
        let outcome = self.fleet.finish().await?;
        let books = AuditReport::of(&outcome.balances, url.as_deref(), agents).await?;
        anyhow::ensure!(books.balance(), "the books do not balance: {books:?}");
        Ok(self.system)
    }
}

/// Registers all agents of a plan. Returns how long that took, and the fleet's statistics.
pub async fn enrol(plan: Plan) -> anyhow::Result<(Duration, Totals)> {
    let (agents, limit) = (u64::from(plan.agents), plan.ramp + TIMEOUT);
    let enrol_only = true;
    let fleet = Fleet::start(Plan { enrol_only, ..plan }, 0)?;
    let all = |totals: &Totals| totals.counts.registered >= agents;
    let took = fleet.until("all agents are registered", limit, all).await?;
    Ok((took, fleet.finish().await?.totals))
}
