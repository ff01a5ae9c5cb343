//! A worker process, which runs a part of the fleet.
//!
//! A plan and then orders come in on standard input; statistics, and at the end one balance for each
//! agent, go out on standard output, as JSON lines. One thread runs all agents and another reads the
//! input. The end of the input means that the parent is gone, and ends the process.
//!
//! Workers are processes for two reasons: a process has a limited number of open files, and each agent
//! needs one; and the kernel reports CPU time and memory for each process, so the cost of the fleet is
//! measured apart from the cost of the service.
//!
//! The runtime has a single thread on purpose. One task per agent then needs no synchronisation, no
//! task migrates between cores, and the only lock (that of the statistics) is never contended, so the
//! load generator disturbs the service under test as little as it can. A larger fleet gets more
//! workers, not more threads.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write, stdin, stdout},
    process::exit,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use svc_harness::raise_file_limit;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    agent::{Agent, FinishedAgent, Shared},
    plan::{Orders, WorkerMessage, WorkerPlan},
    procfs, state, wire,
};

const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// For all agents to say goodbye. The others are aborted.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(45);
/// Orders are rare. When the channel is full, the reading thread waits.
const ORDER_QUEUE: usize = 16;

/// Runs until the order to leave, or until the parent is gone.
pub fn run() -> anyhow::Result<()> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work())
}

async fn work() -> anyhow::Result<()> {
    let (plan, mut orders) = read_input()?;
    let base_kib = procfs::own_usage().rss_kib;
    let shared = Arc::new(Shared::new(plan.fleet.clone())?);
    let mut agents = start(&shared, &plan);
    let mut tick = interval(UPDATE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => send_stats(&shared, base_kib)?,
            received = orders.recv() => {
                let orders = received.context("the parent is gone")?;
                let leave = orders.leave;
                apply(&shared, orders);
                if leave {
                    break;
                }
            }
        }
    }
    let finished = join(&mut agents).await;
    send_stats(&shared, base_kib)?;
    save_jwts(&plan, &finished)?;
    for agent in finished {
        send(&WorkerMessage::Balance(agent.balance))?;
    }
    send(&WorkerMessage::Done)
}

fn start(shared: &Arc<Shared>, plan: &WorkerPlan) -> JoinSet<FinishedAgent> {
    let folder = plan.fleet.state.as_deref();
    let mut saved = folder.map_or_else(BTreeMap::new, |folder| {
        state::load(folder, plan.first, plan.count)
    });
    let (now, step) = (Instant::now(), plan.fleet.ramp / plan.count.max(1));
    let mut agents = JoinSet::new();
    for index in 0..plan.count {
        let number = plan.first + index;
        let bearer = saved.remove(&number).and_then(|text| wire::bearer(&text));
        let agent = Agent::new(shared.clone(), number, bearer);
        agents.spawn(agent.run(now + step * index));
    }
    agents
}

/// The count of agents that are back restarts before any agent sees the new mark.
fn apply(shared: &Shared, orders: Orders) {
    shared.stats(|stats| {
        if orders.mark != stats.counts.mark {
            stats.counts.mark = orders.mark;
            stats.counts.back = 0;
        }
    });
    shared.orders.send_replace(orders);
}

/// Waits for all agents to finish. The parent misses the balance of one that does not.
async fn join(agents: &mut JoinSet<FinishedAgent>) -> Vec<FinishedAgent> {
    let mut finished = Vec::with_capacity(agents.len());
    let all = async {
        while let Some(agent) = agents.join_next().await {
            finished.extend(agent.ok());
        }
    };
    let _ = timeout(LEAVE_TIMEOUT, all).await;
    finished
}

fn save_jwts(plan: &WorkerPlan, finished: &[FinishedAgent]) -> anyhow::Result<()> {
    let Some(folder) = plan.fleet.state.as_deref() else {
        return Ok(());
    };
    let jwts = finished.iter().filter_map(|agent| {
        let bearer = agent.bearer.as_ref()?.to_str().ok()?;
        Some((agent.number, bearer.to_owned()))
    });
    state::save(folder, &jwts.collect())
}

/// Memory is given without what the process used before its first agent.
fn send_stats(shared: &Shared, base_kib: u64) -> anyhow::Result<()> {
    let usage = procfs::own_usage();
    let agents_kib = usage.rss_kib.saturating_sub(base_kib);
    let update = shared.stats(|stats| stats.take_update(usage.cpu_us, agents_kib));
    send(&WorkerMessage::Stats(Box::new(update)))
}

fn send(message: &WorkerMessage) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    let mut out = stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// Reads the plan, and starts the thread that reads the orders. That thread ends the process when the
/// input ends: without the parent there is no reader for the results.
fn read_input() -> anyhow::Result<(WorkerPlan, mpsc::Receiver<Orders>)> {
    let mut first = String::new();
    stdin().lock().read_line(&mut first)?;
    let plan = serde_json::from_str(&first).context("the plan")?;
    let (orders, inbox) = mpsc::channel(ORDER_QUEUE);
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let Ok(received) = serde_json::from_str(&line) else {
                break;
            };
            if orders.blocking_send(received).is_err() {
                return;
            }
        }
        exit(1);
    });
    Ok((plan, inbox))
}
