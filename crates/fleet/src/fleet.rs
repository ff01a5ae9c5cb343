//! The fleet as its parent sees it: workers, what they tell together, and orders to all.
//!
//! Invariant: workers die with this process, however it dies, and every wait here has an end.

mod totals;
mod workers;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

pub use self::totals::{Totals, quantiles, reasons, shown};
use self::workers::{Known, Worker};
use crate::{
    ledger::Balance,
    plan::{Orders, Part, Plan, split},
};

/// A process has 20,000 files here, and needs some for itself.
const AGENTS_PER_PROCESS: u32 = 18_000;
/// Below this a second process costs more than it gives.
const WORTH_A_PROCESS: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
/// For workers to say goodbye and hand over their books.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Fleet {
    pub plan: Plan,
    workers: Vec<Worker>,
    known: Arc<Mutex<Known>>,
    orders: Mutex<Orders>,
    began: Instant,
}

/// What a fleet leaves behind.
#[derive(Debug)]
pub struct Outcome {
    pub totals: Totals,
    pub balances: Vec<Balance>,
}

impl Fleet {
    /// Starts the workers; `processes` 0 is as many as are needed.
    pub fn start(plan: Plan, processes: u32) -> anyhow::Result<Fleet> {
        anyhow::ensure!(!plan.targets.is_empty(), "a fleet needs a target");
        let count = if processes == 0 {
            needed(plan.agents)
        } else {
            processes
        };
        let known = Arc::new(Mutex::new(Known::default()));
        let mut workers = Vec::new();
        for (first, count) in split(plan.agents, count) {
            let (first, plan) = (plan.first + first, plan.clone());
            let part = Part { first, count, plan };
            workers.push(Worker::start(&part, workers.len(), &known)?);
        }
        Ok(Fleet {
            plan,
            workers,
            known,
            orders: Mutex::default(),
            began: Instant::now(),
        })
    }

    pub fn agents(&self) -> u64 {
        u64::from(self.plan.agents)
    }

    pub fn processes(&self) -> usize {
        self.workers.len()
    }

    pub fn totals(&self) -> Totals {
        held(&self.known).totals(self.began.elapsed())
    }

    /// From now on `Totals::window` begins anew.
    pub fn open_window(&self) {
        held(&self.known).open_window();
    }

    /// Changes the orders of all agents.
    pub fn order(&self, change: impl FnOnce(&mut Orders)) -> anyhow::Result<()> {
        let mut orders = held(&self.orders);
        change(&mut orders);
        self.workers
            .iter()
            .try_for_each(|worker| worker.order(&orders))
    }

    /// From now on `back` counts who was acknowledged something.
    pub fn mark(&self) -> anyhow::Result<u64> {
        let mut mark = 0;
        self.order(|orders| {
            orders.mark += 1;
            mark = orders.mark;
        })?;
        Ok(mark)
    }

    /// Waits until `check` holds of the totals; how long that took.
    pub async fn until(
        &self,
        what: &str,
        patience: Duration,
        check: impl Fn(&Totals) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let totals = self.totals();
            if check(&totals) {
                return Ok(began.elapsed());
            }
            self.healthy()?;
            if began.elapsed() > patience {
                bail!("not within {patience:?}: {what}; {}", totals.line());
            }
            sleep(PAUSE).await;
        }
    }

    /// An error when a worker ended that should not have.
    pub fn healthy(&self) -> anyhow::Result<()> {
        match held(&self.known).fault() {
            Some(fault) => bail!("a worker ended: {fault}"),
            None => Ok(()),
        }
    }

    pub async fn all_connected(&self, patience: Duration) -> anyhow::Result<Duration> {
        let agents = self.agents();
        let all = |totals: &Totals| totals.counts.connected == agents;
        self.until("all agents are connected", patience, all).await
    }

    /// Waits until all are connected and were acknowledged something after a mark.
    pub async fn all_back(&self, mark: u64, patience: Duration) -> anyhow::Result<Duration> {
        let agents = self.agents();
        let back = |totals: &Totals| {
            let counts = &totals.counts;
            counts.mark >= mark && counts.back >= agents && counts.connected == agents
        };
        self.until("all agents are back and acknowledged", patience, back)
            .await
    }

    /// Takes no more samples, and waits until all that were taken are acknowledged. Workers tell
    /// twice a second, so what they say must be newer than the order.
    pub async fn settle(&self, patience: Duration) -> anyhow::Result<Duration> {
        let mut mark = 0;
        self.order(|orders| {
            orders.quiet = true;
            orders.mark += 1;
            mark = orders.mark;
        })?;
        let settled = |totals: &Totals| totals.counts.mark >= mark && totals.counts.open() == 0;
        self.until("everything is acknowledged", patience, settled)
            .await
    }

    /// Agents say goodbye, and hand over their books.
    pub async fn finish(self) -> anyhow::Result<Outcome> {
        self.order(|orders| orders.leave = true)?;
        let deadline = Instant::now() + FINISH_PATIENCE;
        while !held(&self.known).is_done(self.workers.len()) {
            self.healthy()?;
            anyhow::ensure!(Instant::now() < deadline, "workers do not end");
            sleep(PAUSE).await;
        }
        let totals = self.totals();
        let balances = held(&self.known).take_balances();
        Ok(Outcome { totals, balances })
    }
}

/// As many as the files ask for, and one a core where the fleet is large enough.
fn needed(agents: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let useful = agents.div_ceil(WORTH_A_PROCESS).min(cores);
    agents.div_ceil(AGENTS_PER_PROCESS).max(useful).max(1)
}

/// Counting goes on whoever panicked.
fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of PEM, for who names one.
pub fn read_pem(path: &std::path::Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_holds_more_agents_than_it_has_files_for() {
        for agents in [1, 20, 999, 18_000, 18_001, 50_000, 200_000] {
            let parts = split(agents, needed(agents));
            assert!(parts.iter().all(|(_, count)| *count <= AGENTS_PER_PROCESS));
        }
        assert_eq!(needed(200), 1);
    }
}
