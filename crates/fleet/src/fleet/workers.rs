//! A worker process, and what is known of all of them.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::Context;
use svc_sandbox::{dying_with_us, spawn};

use super::{held, totals::Totals};
use crate::{
    ledger::Balance,
    plan::{Line, Orders, Part},
    tally::{Clocks, Counts, Told},
};

/// A running worker; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    input: Mutex<ChildStdin>,
}

/// What the workers have told so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    latest: Vec<Told>,
    clocks: Clocks,
    window: Clocks,
    balances: Vec<Balance>,
    done: usize,
    fault: Option<String>,
}

impl Worker {
    pub fn start(part: &Part, index: usize, known: &Arc<Mutex<Known>>) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("this program's own path")?;
        let mut command = dying_with_us(&program);
        command.arg("worker");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let mut input = child.stdin.take().context("a worker's input")?;
        let output = child.stdout.take().context("a worker's output")?;
        writeln!(input, "{}", serde_json::to_string(part)?)?;
        held(known).latest.push(Told::default());
        listen(output, index, known.clone());
        let input = Mutex::new(input);
        Ok(Worker { child, input })
    }

    pub fn order(&self, orders: &Orders) -> anyhow::Result<()> {
        let line = serde_json::to_string(orders)?;
        writeln!(held(&self.input), "{line}").context("a worker is gone")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread a worker, until its output ends.
fn listen(output: ChildStdout, index: usize, known: Arc<Mutex<Known>>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(line) => held(&known).hear(index, line),
                Err(error) => held(&known).fail(format!("it says {line:?}: {error}")),
            }
        }
        held(&known).ended();
    });
}

impl Known {
    fn hear(&mut self, index: usize, line: Line) {
        match line {
            Line::Told(told) => {
                self.clocks.add(&told);
                self.window.add(&told);
                self.latest[index] = *told;
            }
            Line::Balance(balance) => self.balances.push(balance),
            Line::Done => self.done += 1,
        }
    }

    fn fail(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// An output that ends before `Done` is a worker that died.
    fn ended(&mut self) {
        if self.done == 0 {
            self.fail("before it was told to".into());
        }
    }

    pub fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    pub fn is_done(&self, workers: usize) -> bool {
        self.done == workers
    }

    pub fn open_window(&mut self) {
        self.window = Clocks::default();
    }

    pub fn take_balances(&mut self) -> Vec<Balance> {
        std::mem::take(&mut self.balances)
    }

    pub fn totals(&self, age: Duration) -> Totals {
        let mut errors = std::collections::BTreeMap::new();
        for (reason, count) in self.latest.iter().flat_map(|told| &told.errors) {
            *errors.entry(reason.clone()).or_default() += count;
        }
        Totals {
            counts: Counts::sum(self.latest.iter().map(|told| &told.counts)),
            errors,
            clocks: self.clocks.clone(),
            window: self.window.clone(),
            cpu_us: self.latest.iter().map(|told| told.cpu_us).sum(),
            rss_kib: self.latest.iter().map(|told| told.rss_kib).sum(),
            age,
        }
    }
}
