//! A process that runs a part of the fleet: plan and orders in, counts and books out.
//!
//! It has one thread that runs agents, and one that reads its input. When its input ends, its parent
//! is gone, and it ends too. A process of its own is what makes a fleet larger than one process's
//! files, and its cost readable.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write, stdin, stdout},
    process::exit,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use http::HeaderValue;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    agent::{Agent, Remains, Shared},
    plan::{Line, Orders, Part},
    proc, state,
};

const TELL_EVERY: Duration = Duration::from_millis(500);
/// For all agents to say goodbye; those that have not are cut off.
const LEAVE_PATIENCE: Duration = Duration::from_secs(45);
/// Orders are few: a parent that sends more waits for its turn.
const ORDERS_WAITING: usize = 16;

/// Runs until the order to leave, or until the parent is gone.
pub fn run() -> anyhow::Result<()> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work())
}

/// A connection is a file: take as many as the hard limit allows.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

async fn work() -> anyhow::Result<()> {
    let (part, mut orders) = read_input()?;
    let base_kib = proc::own_cost().rss_kib;
    let shared = Arc::new(Shared::new(part.plan.clone())?);
    let mut agents = start(&shared, &part);
    let mut tick = interval(TELL_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => tell(&shared, base_kib)?,
            news = orders.recv() => {
                let news = news.context("the parent is gone")?;
                let leave = news.leave;
                heed(&shared, news);
                if leave {
                    break;
                }
            }
        }
    }
    let remains = leave(&mut agents).await;
    tell(&shared, base_kib)?;
    keep(&part, &remains)?;
    for agent in remains {
        say(&Line::Balance(agent.balance))?;
    }
    say(&Line::Done)
}

fn start(shared: &Arc<Shared>, part: &Part) -> JoinSet<Remains> {
    let known = part.plan.state.as_deref();
    let mut known = known.map_or_else(BTreeMap::new, |folder| {
        state::load(folder, part.first, part.count)
    });
    let (now, step) = (Instant::now(), part.plan.ramp / part.count.max(1));
    let mut agents = JoinSet::new();
    for index in 0..part.count {
        let number = part.first + index;
        let bearer = known.remove(&number).and_then(|kept| bearer(&kept));
        let agent = Agent::new(shared.clone(), number, bearer);
        agents.spawn(agent.run(now + step * index));
    }
    agents
}

/// Marked as sensitive again, so that HTTP/2 keeps it out of its tables.
fn bearer(kept: &str) -> Option<HeaderValue> {
    let mut bearer = HeaderValue::try_from(kept).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

fn heed(shared: &Shared, news: Orders) {
    shared.tally(|tally| {
        if news.mark != tally.counts.mark {
            tally.counts.mark = news.mark;
            tally.counts.back = 0;
        }
    });
    shared.orders.send_replace(news);
}

/// Agents that do not come to an end have no books, which the parent will notice.
async fn leave(agents: &mut JoinSet<Remains>) -> Vec<Remains> {
    let mut remains = Vec::with_capacity(agents.len());
    let gathering = async {
        while let Some(agent) = agents.join_next().await {
            remains.extend(agent.ok());
        }
    };
    let _ = timeout(LEAVE_PATIENCE, gathering).await;
    remains
}

fn keep(part: &Part, remains: &[Remains]) -> anyhow::Result<()> {
    let Some(folder) = part.plan.state.as_deref() else {
        return Ok(());
    };
    let jwts = remains.iter().filter_map(|agent| {
        let bearer = agent.bearer.as_ref()?.to_str().ok()?;
        Some((agent.number, bearer.to_owned()))
    });
    state::save(folder, &jwts.collect())
}

/// Memory is told without what the process took before its first agent.
fn tell(shared: &Shared, base_kib: u64) -> anyhow::Result<()> {
    let cost = proc::own_cost();
    let agents_kib = cost.rss_kib.saturating_sub(base_kib);
    let told = shared.tally(|tally| tally.tell((cost.cpu_us, agents_kib)));
    say(&Line::Told(Box::new(told)))
}

fn say(line: &Line) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The plan at once, and orders as they come. The thread that reads them outlives everything; when
/// the input ends it ends the process, because nobody is left to hear of it.
fn read_input() -> anyhow::Result<(Part, mpsc::Receiver<Orders>)> {
    let mut first = String::new();
    stdin().lock().read_line(&mut first)?;
    let part = serde_json::from_str(&first).context("the plan")?;
    let (orders, inbox) = mpsc::channel(ORDERS_WAITING);
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let Ok(news) = serde_json::from_str(&line) else {
                break;
            };
            if orders.blocking_send(news).is_err() {
                return;
            }
        }
        exit(1);
    });
    Ok((part, inbox))
}
