//! The worker processes of a fleet, and what they have sent.

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context;
use svc_harness::Balance;
use svc_sandbox::{dying_with_us, spawn};

use super::totals::Totals;
use crate::{
    plan::{Orders, WorkerMessage, WorkerPlan},
    stats::{Counts, Latencies, StatsUpdate},
};

/// Ignores poisoning: counters stay usable after a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running worker; dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    input: Mutex<ChildStdin>,
}

/// Everything that the workers have sent so far.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The latest update of each worker.
    latest: Vec<StatsUpdate>,
    latencies: Latencies,
    window: Latencies,
    balances: Vec<Balance>,
    /// The workers that have sent everything.
    done: HashSet<usize>,
    fault: Option<String>,
}

impl Worker {
    pub fn start(
        plan: &WorkerPlan,
        index: usize,
        collected: &Arc<Mutex<Collected>>,
    ) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = dying_with_us(&program);
        command.arg("worker");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let mut input = child.stdin.take().context("a worker's input")?;
        let output = child.stdout.take().context("a worker's output")?;
        writeln!(input, "{}", serde_json::to_string(plan)?)?;
        lock(collected).latest.push(StatsUpdate::default());
        collect(output, index, collected.clone());
        let input = Mutex::new(input);
        Ok(Worker { child, input })
    }

    pub fn order(&self, orders: &Orders) -> anyhow::Result<()> {
        let line = serde_json::to_string(orders)?;
        writeln!(lock(&self.input), "{line}").context("a worker has ended")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the thread that reads a worker's output until it ends.
fn collect(output: ChildStdout, index: usize, collected: Arc<Mutex<Collected>>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(line) => lock(&collected).receive(index, line),
                Err(error) => lock(&collected).fail(format!("it wrote {line:?}: {error}")),
            }
        }
        lock(&collected).ended(index);
    });
}

impl Collected {
    fn receive(&mut self, index: usize, message: WorkerMessage) {
        match message {
            WorkerMessage::Stats(update) => {
                self.latencies.add(&update.stats.latencies);
                self.window.add(&update.stats.latencies);
                self.latest[index] = *update;
            }
            WorkerMessage::Balance(balance) => self.balances.push(balance),
            WorkerMessage::Done => {
                self.done.insert(index);
            }
        }
    }

    fn fail(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// A worker whose output ends before `Done` has died.
    fn ended(&mut self, index: usize) {
        if !self.done.contains(&index) {
            self.fail("it ended before the order to leave".into());
        }
    }

    pub fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    pub fn is_done(&self, workers: usize) -> bool {
        self.done.len() == workers
    }

    pub fn open_window(&mut self) {
        self.window = Latencies::default();
    }

    pub fn take_balances(&mut self) -> Vec<Balance> {
        std::mem::take(&mut self.balances)
    }

    pub fn totals(&self, age: Duration) -> Totals {
        let mut errors = BTreeMap::new();
        let stats = self.latest.iter().map(|update| &update.stats);
        for (reason, count) in stats.clone().flat_map(|stats| &stats.errors) {
            *errors.entry(reason.clone()).or_default() += count;
        }
        Totals {
            counts: Counts::sum(stats.map(|stats| &stats.counts)),
            errors,
            latencies: self.latencies.clone(),
            window: self.window.clone(),
            cpu_us: self.latest.iter().map(|update| update.cpu_us).sum(),
            rss_kib: self.latest.iter().map(|update| update.rss_kib).sum(),
            age,
        }
    }
}
