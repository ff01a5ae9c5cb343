//! One virtual agent: a key, a connection, a stream and a ledger, in one task.
//!
//! It behaves as the wire contract asks: it registers, goes on after what is durable, keeps at most
//! two reports unacknowledged, heeds hints and drains (connecting anew before it leaves), backs off
//! with full jitter and takes new JWTs. Samples are taken by the clock whether it is connected or
//! not, and only counted when it wakes for another reason: an idle agent costs nothing.

mod backoff;
mod copy;
mod link;
mod live;
mod lost;
mod open;
mod shared;

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use rustls::sign::CertifiedKey;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use self::{backoff::Backoff, link::Link, live::Over, lost::Lost};
pub use self::{open::REGISTER, shared::Shared};
use crate::{
    ledger::{Balance, Ledger},
    plan::{Orders, Task},
};

/// From the first packet to Welcome.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);
const GOODBYE_PATIENCE: Duration = Duration::from_secs(5);

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
    /// Which of the targets is next.
    turn: usize,
    interval: Duration,
    next_sample: Instant,
    /// What must be added to its own clock, in milliseconds.
    correction_ms: i64,
    lost_at: Option<Instant>,
    /// What it has heeded of the orders.
    cuts: u64,
    mark: u64,
    away: bool,
    copied: bool,
}

/// What an agent leaves behind.
#[derive(Debug)]
pub struct Remains {
    pub number: u32,
    pub balance: Balance,
    pub bearer: Option<HeaderValue>,
}

impl Agent {
    pub fn new(shared: Arc<Shared>, number: u32, bearer: Option<HeaderValue>) -> Agent {
        let orders = shared.orders.subscribe();
        let interval = shared.interval();
        Agent {
            number,
            orders,
            key: None,
            bearer,
            agent_id: Box::default(),
            ledger: Ledger::default(),
            backoff: Backoff::default(),
            turn: if shared.plan.spread {
                number as usize
            } else {
                0
            },
            interval,
            next_sample: Instant::now() + interval.mul_f64(rand::random()),
            correction_ms: 0,
            lost_at: None,
            cuts: 0,
            mark: 0,
            away: false,
            copied: false,
            shared,
        }
    }

    /// Lives from `start` until it is told to leave.
    pub async fn run(mut self, start: Instant) -> Remains {
        let mut connect_at = start;
        let mut old: Option<Box<Link>> = None;
        while self.rest(connect_at).await {
            if self.shared.plan.task != Task::Report {
                connect_at = self.errand().await;
                continue;
            }
            let opened = self.connect().await;
            drop(old.take());
            let over = match opened {
                Ok(link) => self.live(link).await,
                Err(lost) => Over::Lost(lost),
            };
            match over {
                Over::Leave(mut link) => {
                    self.disconnected();
                    let _ = timeout(GOODBYE_PATIENCE, link.leave(self.shared.goodbye())).await;
                    break;
                }
                Over::Drained(link) => {
                    self.shared.tally(|tally| tally.counts.drained += 1);
                    self.disconnected();
                    self.turn += 1;
                    old = Some(link);
                    connect_at = Instant::now();
                }
                Over::Away(pause) => {
                    self.disconnected();
                    connect_at = Instant::now() + pause;
                }
                Over::Lost(lost) => connect_at = self.lost(&lost),
            }
        }
        self.remains()
    }

    /// Waits for the time to connect; false when it was told to leave.
    async fn rest(&mut self, until: Instant) -> bool {
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.leave {
                return false;
            }
            self.heed_absence(&orders);
            self.cuts = orders.cuts;
            tokio::select! {
                () = sleep_until(until), if !self.away => return true,
                changed = self.orders.changed() => if changed.is_err() {
                    return false;
                },
            }
        }
    }

    /// Going away fills the spool with what was sampled meanwhile.
    fn heed_absence(&mut self, orders: &Orders) {
        if let Some(away) = orders.away
            && !self.away
        {
            let step_ms = away.span.as_millis() as i64 / i64::from(away.samples.max(1));
            let now_ms = self.clock_ms();
            let taken = (1..=i64::from(away.samples)).rev();
            let taken = taken.filter(|age| self.ledger.take(now_ms - age * step_ms));
            let taken = taken.count() as u64;
            self.shared.tally(|tally| tally.counts.taken += taken);
        }
        self.away = orders.away.is_some();
    }

    async fn connect(&mut self) -> Result<Box<Link>, Lost> {
        let began = Instant::now();
        let opening = Box::pin(timeout(CONNECT_PATIENCE, self.open()));
        let link = opening.await.unwrap_or(Err(Lost::Slow))?;
        self.backoff.succeeded();
        let absence = self.lost_at.take().map(|at| at.elapsed());
        self.shared.tally(|tally| {
            tally.counts.connected += 1;
            tally.counts.streams += 1;
            tally.clocks.connect.record_duration(began.elapsed());
            absence
                .into_iter()
                .for_each(|time| tally.clocks.absence.record_duration(time));
        });
        Ok(link)
    }

    fn disconnected(&mut self) {
        self.lost_at = Some(Instant::now());
        self.shared.tally(|tally| tally.counts.connected -= 1);
    }

    /// Where the loss was of a live stream, `live` has said so already.
    fn lost(&mut self, lost: &Lost) -> Instant {
        self.lost_at.get_or_insert_with(Instant::now);
        self.turn += 1;
        if lost.wants_registration() {
            self.bearer = None;
        }
        self.shared.tally(|tally| tally.error(&lost.reason()));
        Instant::now() + self.backoff.wait(lost.hint(), rand::random())
    }

    fn remains(mut self) -> Remains {
        self.take_due(Instant::now());
        Remains {
            number: self.number,
            balance: self.ledger.balance(&self.agent_id),
            bearer: self.bearer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    /// Beside its connection an agent is little: fifty thousand of them share a machine with the
    /// service they test.
    #[test]
    fn an_agent_s_task_is_small() {
        let target = ([127, 0, 0, 1], 1).into();
        let plan = Plan::local(1, vec![target], String::new());
        let shared = Arc::new(Shared::new(plan).unwrap());
        let life = Agent::new(shared, 0, None).run(Instant::now());
        let size = size_of_val(&life);
        assert!(size <= 2048, "{size} bytes");
    }
}
