//! One virtual agent: a key, a connection, a heartbeat stream and a ledger, in one task.
//!
//! It follows the wire contract as the real agent does: it registers, resumes after the watermark,
//! keeps at most two reports in flight, renews its JWT, reconnects in its drain slot before it leaves
//! the old stream, and retries by [`svc_proto::contract`]. It samples by the clock whether or not it is
//! connected, but it has no timer for that while it waits for something else: the samples that became
//! due are counted at the next wake-up.
//!
//! Memory decides how many agents fit on one machine, so an agent is exactly one task. Nothing in this
//! module spawns, and whatever is large and rare is boxed: a future is as large as its largest await point,
//! so an inlined TLS handshake would occupy its several KiB for as long as the agent lives. A unit test
//! bounds the size of the task.

mod connect;
mod connection;
mod failure;
mod heartbeat_call;
mod retry;
mod session;
mod shared;

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use rustls::sign::CertifiedKey;
use svc_harness::{Balance, Ledger};
use svc_proto::contract::Backoff;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

pub use self::shared::Shared;
use self::{
    failure::{Failure, StreamEnd},
    heartbeat_call::HeartbeatCall,
};
use crate::plan::Orders;

/// From the first packet to Welcome. Longer than a registration waits in a crowd (30 s).
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(40);
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);
/// A stream that lives this long resets the backoff, as in the real agent.
const STABLE_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    number: u32,
    orders: watch::Receiver<Orders>,
    key: Option<Arc<CertifiedKey>>,
    bearer: Option<HeaderValue>,
    agent_id: Box<str>,
    ledger: Ledger,
    backoff: Backoff,
    /// Index of the next target, modulo their number.
    next_target: usize,
    interval: Duration,
    next_sample: Instant,
    /// Milliseconds to add to the agent's own clock.
    correction_ms: i64,
    disconnected_at: Option<Instant>,
    /// The orders that this agent has carried out so far.
    cuts: u64,
    mark: u64,
}

/// What remains of an agent after its task has ended.
#[derive(Debug)]
pub struct FinishedAgent {
    pub number: u32,
    pub balance: Balance,
    pub bearer: Option<HeaderValue>,
}

impl Agent {
    pub fn new(shared: Arc<Shared>, number: u32, bearer: Option<HeaderValue>) -> Agent {
        let interval = shared.interval();
        Agent {
            number,
            orders: shared.orders.subscribe(),
            key: None,
            bearer,
            agent_id: Box::default(),
            ledger: Ledger::default(),
            backoff: Backoff::default(),
            next_target: number as usize,
            interval,
            next_sample: Instant::now() + interval.mul_f64(rand::random()),
            correction_ms: 0,
            disconnected_at: None,
            cuts: 0,
            mark: 0,
            shared,
        }
    }

    /// Runs from `start` until the order to leave.
    pub async fn run(mut self, start: Instant) -> FinishedAgent {
        let mut connect_at = start;
        // The stream of a drained agent, kept open until the next one is welcomed.
        let mut drained: Option<Box<HeartbeatCall>> = None;
        while self.rest(connect_at).await {
            if self.shared.plan.enrol_only {
                connect_at = self.enrol().await;
                continue;
            }
            let opened = self.connect().await;
            drop(drained.take());
            let call = match opened {
                Ok(call) => call,
                Err(failure) => {
                    connect_at = self.retry_at(&failure);
                    continue;
                }
            };
            let opened = Instant::now();
            let (end, mut call) = self.run_stream(call).await;
            self.disconnected();
            if opened.elapsed() >= STABLE_AFTER {
                self.backoff.reset();
            }
            connect_at = Instant::now();
            match end {
                StreamEnd::Cut => {}
                StreamEnd::Failed(failure) => {
                    self.shared.stats(|stats| stats.counts.lost += 1);
                    connect_at = self.retry_at(&failure);
                }
                StreamEnd::Drained => {
                    self.shared.stats(|stats| stats.counts.drained += 1);
                    self.next_target += 1;
                    drained = Some(call);
                }
                StreamEnd::Left => {
                    self.say_goodbye(&mut call).await;
                    break;
                }
            }
        }
        self.finish()
    }

    /// Waits for the time to connect. Returns false after the order to leave.
    async fn rest(&mut self, until: Instant) -> bool {
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.leave {
                return false;
            }
            self.cuts = orders.cuts;
            tokio::select! {
                () = sleep_until(until) => return true,
                changed = self.orders.changed() => if changed.is_err() {
                    return false;
                },
            }
        }
    }

    async fn connect(&mut self) -> Result<Box<HeartbeatCall>, Failure> {
        let shared = self.shared.clone();
        let _turn = shared.openings.acquire().await;
        let began = Instant::now();
        let opening = Box::pin(timeout(CONNECT_TIMEOUT, self.open()));
        let call = opening.await.unwrap_or(Err(Failure::Timeout))?;
        let absence = self.disconnected_at.take().map(|at| at.elapsed());
        self.shared.stats(|stats| {
            stats.counts.connected += 1;
            stats.counts.streams += 1;
            stats.latencies.connect.record_duration(began.elapsed());
            if let Some(absence) = absence {
                stats.latencies.absence.record_duration(absence);
            }
        });
        Ok(call)
    }

    fn disconnected(&mut self) {
        self.disconnected_at = Some(Instant::now());
        self.shared.stats(|stats| stats.counts.connected -= 1);
    }

    async fn say_goodbye(&self, call: &mut HeartbeatCall) {
        let goodbye = call.close(self.shared.goodbye());
        let _ = timeout(GOODBYE_TIMEOUT, goodbye).await;
    }

    fn finish(mut self) -> FinishedAgent {
        self.take_due(Instant::now());
        FinishedAgent {
            number: self.number,
            balance: self.ledger.balance(&self.agent_id),
            bearer: self.bearer,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;
    use crate::plan::Plan;

    pub fn agent(bearer: Option<HeaderValue>) -> Agent {
        let target = ([127, 0, 0, 1], 1).into();
        let plan = Plan::local(1, vec![target], String::new());
        Agent::new(Arc::new(Shared::new(plan).unwrap()), 0, bearer)
    }

    #[tokio::test]
    async fn no_more_agents_connect_at_once_than_the_plan_says() -> anyhow::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut plan = Plan::local(5, vec![listener.local_addr()?], String::new());
        plan.openings = Some(2);
        let shared = Arc::new(Shared::new(plan)?);
        let bearer = Some(HeaderValue::from_static("Bearer none"));
        let agents = (0..5).map(|number| Agent::new(shared.clone(), number, bearer.clone()));
        let _agents: JoinSet<_> = agents.map(|agent| agent.run(Instant::now())).collect();
        // Nobody answers the handshakes of the first two until one of them is cut off.
        let (first, _second) = (listener.accept().await?, listener.accept().await?);
        let third = timeout(Duration::from_millis(500), listener.accept()).await;
        assert!(third.is_err(), "a third agent connected");
        drop(first);
        timeout(Duration::from_secs(60), listener.accept()).await??;
        Ok(())
    }

    /// Fifty thousand agents share a machine with the service that they test.
    #[test]
    fn an_agent_s_task_is_small() {
        let task = agent(None).run(Instant::now());
        let size = size_of_val(&task);
        assert!(size <= 2048, "{size} bytes");
    }
}
