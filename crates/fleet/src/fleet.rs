//! A fleet as its parent process sees it: worker processes, their statistics together, and orders to all.
//!
//! Invariants: the workers die with this process, even if it is killed; every wait here has a deadline.

mod totals;
mod workers;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::bail;
use svc_harness::Balance;
use tokio::time::{Instant, sleep};

pub use self::totals::{Totals, format_errors, note};
use self::workers::{Collected, Worker, lock};
use crate::plan::{Orders, Plan, WorkerPlan, split};

/// A process may open 20,000 files on a default machine, and needs some for itself.
const AGENTS_PER_PROCESS: u32 = 18_000;
/// Below this a second process costs more than it gains.
const MIN_AGENTS_PER_PROCESS: u32 = 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// For agents to say goodbye and workers to send the balances.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Fleet {
    pub plan: Plan,
    workers: Vec<Worker>,
    collected: Arc<Mutex<Collected>>,
    orders: Mutex<Orders>,
    began: Instant,
}

/// What remains of a fleet after it has ended.
#[derive(Debug)]
pub struct Outcome {
    pub totals: Totals,
    pub balances: Vec<Balance>,
}

impl Fleet {
    /// Starts the workers; with `processes` 0 as many as the agents need.
    pub fn start(plan: Plan, processes: u32) -> anyhow::Result<Fleet> {
        anyhow::ensure!(!plan.targets.is_empty(), "a fleet needs a target");
        let count = if processes == 0 {
            needed(plan.agents)
        } else {
            processes
        };
        let collected = Arc::new(Mutex::new(Collected::default()));
        let mut workers = Vec::new();
        for (first, count) in split(plan.agents, count) {
            let part = WorkerPlan {
                first: plan.first + first,
                count,
                fleet: plan.clone(),
            };
            workers.push(Worker::start(&part, workers.len(), &collected)?);
        }
        Ok(Fleet {
            plan,
            workers,
            collected,
            orders: Mutex::default(),
            began: Instant::now(),
        })
    }

    pub fn agents(&self) -> u64 {
        u64::from(self.plan.agents)
    }

    pub fn totals(&self) -> Totals {
        lock(&self.collected).totals(self.began.elapsed())
    }

    /// Empties the latencies of `Totals::window`.
    pub fn open_window(&self) {
        lock(&self.collected).open_window();
    }

    /// Changes the orders of all agents.
    pub fn order(&self, change: impl FnOnce(&mut Orders)) -> anyhow::Result<()> {
        let mut orders = lock(&self.orders);
        change(&mut orders);
        self.workers
            .iter()
            .try_for_each(|worker| worker.order(&orders))
    }

    /// Starts to count which agents are back. Returns the number of the mark.
    pub fn mark(&self) -> anyhow::Result<u64> {
        let mut mark = 0;
        self.order(|orders| {
            orders.mark += 1;
            mark = orders.mark;
        })?;
        Ok(mark)
    }

    /// Waits until `check` holds for the totals. Returns how long that took.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        check: impl Fn(&Totals) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let totals = self.totals();
            if check(&totals) {
                return Ok(began.elapsed());
            }
            self.healthy()?;
            if began.elapsed() > limit {
                bail!("not within {limit:?}: {what}; {}", totals.line());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Fails if a worker has ended too early.
    pub fn healthy(&self) -> anyhow::Result<()> {
        match lock(&self.collected).fault() {
            Some(fault) => bail!("a worker failed: {fault}"),
            None => Ok(()),
        }
    }

    pub async fn all_connected(&self, limit: Duration) -> anyhow::Result<Duration> {
        let agents = self.agents();
        let all = |totals: &Totals| totals.counts.connected == agents;
        self.until("all agents are connected", limit, all).await
    }

    /// Waits until all agents are connected and have got an acknowledgement after the mark.
    pub async fn all_back(&self, mark: u64, limit: Duration) -> anyhow::Result<Duration> {
        let agents = self.agents();
        let back = |totals: &Totals| {
            let counts = &totals.counts;
            counts.mark >= mark && counts.back >= agents && counts.connected == agents
        };
        self.until("all agents are back and acknowledged", limit, back)
            .await
    }

    /// Stops taking samples, and waits until all samples are acknowledged.
    ///
    /// Workers send updates only twice a second. An update from before the order could show zero open
    /// samples just before the last one is taken. So a mark follows the order, and only updates that
    /// carry it count.
    pub async fn settle(&self, limit: Duration) -> anyhow::Result<Duration> {
        self.order(|orders| orders.quiet = true)?;
        let mark = self.mark()?;
        let settled = |totals: &Totals| totals.counts.mark >= mark && totals.counts.open() == 0;
        self.until("all samples are acknowledged", limit, settled)
            .await
    }

    /// Makes all agents say goodbye, and collects their balances.
    pub async fn finish(self) -> anyhow::Result<Outcome> {
        self.order(|orders| orders.leave = true)?;
        let deadline = Instant::now() + FINISH_TIMEOUT;
        while !lock(&self.collected).is_done(self.workers.len()) {
            self.healthy()?;
            anyhow::ensure!(Instant::now() < deadline, "the workers do not end");
            sleep(POLL_INTERVAL).await;
        }
        let totals = self.totals();
        let balances = lock(&self.collected).take_balances();
        Ok(Outcome { totals, balances })
    }
}

/// As many processes as the limit of open files requires, and one for each core if the fleet is large enough.
fn needed(agents: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let useful = agents.div_ceil(MIN_AGENTS_PER_PROCESS).min(cores);
    agents.div_ceil(AGENTS_PER_PROCESS).max(useful).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_runs_more_agents_than_it_may_open_files() {
        for agents in [1, 20, 999, 18_000, 18_001, 50_000, 200_000] {
            let parts = split(agents, needed(agents));
            assert!(parts.iter().all(|(_, count)| *count <= AGENTS_PER_PROCESS));
        }
        assert_eq!(needed(200), 1);
    }
}
