//! The life of one heartbeat stream: reports on time, acknowledgements into the ledger, and its end.

use std::time::Duration;

use svc_harness::Settled;
use svc_proto::{
    ServerMessage,
    contract::limits::MAX_REPORTS_IN_FLIGHT,
    v1::{Ack, Drain, Settings},
};
use tokio::time::{Instant, sleep_until};

use super::{
    Agent,
    failure::{Failure, StreamEnd},
    heartbeat_call::HeartbeatCall,
};
use crate::{
    plan::Orders,
    wire::{self, bearer},
};

/// An agent that waits this long for an acknowledgement pings the service.
const PROBE_AFTER_US: u64 = 20_000_000;

struct Session {
    call: Box<HeartbeatCall>,
    /// How many reports wait for their acknowledgement.
    in_flight: usize,
    /// The highest sequence number of each of them.
    ends: [u64; MAX_REPORTS_IN_FLIGHT],
    drain_at: Option<Instant>,
}

impl Agent {
    pub(super) async fn run_stream(
        &mut self,
        call: Box<HeartbeatCall>,
    ) -> (StreamEnd, Box<HeartbeatCall>) {
        let mut session = Session {
            call,
            in_flight: 0,
            ends: [0; MAX_REPORTS_IN_FLIGHT],
            drain_at: None,
        };
        self.take_due(Instant::now());
        let mut step = self.send_reports(&mut session).map(|()| None);
        loop {
            match step {
                Ok(None) => step = self.step(&mut session).await,
                Ok(Some(end)) => return (end, session.call),
                Err(failure) => return (StreamEnd::Failed(failure), session.call),
            }
        }
    }

    /// Waits for a message, the next timer or new orders, whichever comes first. All three waits are
    /// cancel-safe, so dropping the other two loses nothing.
    async fn step(&mut self, session: &mut Session) -> Result<Option<StreamEnd>, Failure> {
        let wake_at = session
            .drain_at
            .map_or(self.next_sample, |at| at.min(self.next_sample));
        tokio::select! {
            message = session.call.recv() => if let Some(message) = message? {
                self.handle_message(session, message)?;
            },
            () = sleep_until(wake_at) => return self.handle_timer(session).await,
            changed = self.orders.changed() => {
                if changed.is_err() {
                    return Ok(Some(StreamEnd::Left));
                }
                let orders = self.orders.borrow_and_update().clone();
                return Ok(self.apply_orders(&orders));
            }
        }
        Ok(None)
    }

    fn handle_message(
        &mut self,
        session: &mut Session,
        message: ServerMessage,
    ) -> Result<(), Failure> {
        match message {
            ServerMessage::Ack(ack) => {
                self.acknowledged(session, &ack);
                self.send_reports(session)?;
            }
            ServerMessage::Credential(credential) => {
                let renewed = bearer(&format!("Bearer {}", credential.jwt));
                self.bearer = renewed.or(self.bearer.take());
            }
            ServerMessage::Settings(settings) => self.apply_settings(&settings),
            ServerMessage::Drain(drain) => {
                session.drain_at = Some(Instant::now() + drain_slot(&drain));
            }
            // Virtual agents do not update themselves.
            ServerMessage::Welcome(_)
            | ServerMessage::Offer(_)
            | ServerMessage::ChangeKey(_)
            | ServerMessage::KeyStored(_)
            | ServerMessage::Trust(_)
            | ServerMessage::MoveTo(_) => {}
        }
        Ok(())
    }

    async fn handle_timer(&mut self, session: &mut Session) -> Result<Option<StreamEnd>, Failure> {
        let now = Instant::now();
        if session.drain_at.is_some_and(|at| at <= now) {
            return Ok(Some(StreamEnd::Drained));
        }
        if self.shared.plan.closed_loop && session.in_flight == MAX_REPORTS_IN_FLIGHT {
            self.next_sample = now + self.interval;
            self.shared.stats(|stats| stats.counts.skipped += 1);
        }
        self.take_due(now);
        self.send_reports(session)?;
        self.probe_if_unacknowledged(session).await?;
        Ok(None)
    }

    /// Takes every sample whose time has come. An agent that was disconnected takes many at once, each
    /// with the time at which it was due.
    pub(super) fn take_due(&mut self, now: Instant) {
        let quiet = self.orders.borrow().quiet;
        let each = self.shared.plan.report_samples.max(1);
        let (mut taken, mut skipped) = (0, 0);
        while self.next_sample <= now {
            let age = now.duration_since(self.next_sample).as_millis() as i64;
            for _ in 0..if quiet { 0 } else { each } {
                match self.ledger.take(self.clock_ms() - age) {
                    true => taken += 1,
                    false => skipped += 1,
                }
            }
            self.next_sample += self.interval;
        }
        self.shared.stats(|stats| {
            stats.counts.taken += taken;
            stats.counts.skipped += skipped;
        });
    }

    fn send_reports(&mut self, session: &mut Session) -> Result<(), Failure> {
        while session.in_flight < MAX_REPORTS_IN_FLIGHT && self.ledger.has_unsent() {
            let samples = self.ledger.next_report(self.shared.now_us());
            let Some(last) = samples.last() else { break };
            session.ends[session.in_flight] = last.seq;
            session.in_flight += 1;
            let report = wire::report(&self.shared.vitals, samples.into_iter());
            session.call.send(report)?;
            self.shared.stats(|stats| stats.counts.reports += 1);
        }
        Ok(())
    }

    fn acknowledged(&mut self, session: &mut Session, ack: &Ack) {
        let reports = session.settle(ack.up_to_seq);
        let now_us = self.shared.now_us();
        let rejected = ack.rejected.len();
        let settled = self.ledger.acknowledged(ack.up_to_seq, rejected, now_us);
        self.shared.stats(|stats| {
            stats.counts.reports_acked += reports;
            stats.counts.rejected += rejected as u64;
        });
        self.count_settled(&settled, reports);
    }

    /// The first acknowledged report after a mark counts this agent as back. An agent that has not yet
    /// carried out the latest cut is not back: the acknowledgement is from before the fault.
    pub(super) fn count_settled(&mut self, settled: &Settled, reports: u64) {
        let (mark, cuts) = {
            let orders = self.orders.borrow();
            (orders.mark, orders.cuts)
        };
        let back = reports > 0 && mark > self.mark && cuts == self.cuts;
        if back {
            self.mark = mark;
        }
        self.shared.stats(|stats| {
            stats.counts.back += u64::from(back);
            stats.counts.acked += settled.samples;
            if let Some(us) = settled.slowest_us {
                stats.latencies.ack.record(us);
            }
        });
    }

    async fn probe_if_unacknowledged(&mut self, session: &mut Session) -> Result<(), Failure> {
        let now_us = self.shared.now_us();
        let waiting = self.ledger.waiting_since_us();
        match waiting.filter(|since| now_us.saturating_sub(*since) > PROBE_AFTER_US) {
            Some(_) => session.call.probe().await,
            None => Ok(()),
        }
    }

    /// The interval of the plan, if it has one, goes before that of the service.
    pub(super) fn apply_settings(&mut self, settings: &Settings) {
        let wanted = settings.heartbeat_interval;
        let wanted = wanted.and_then(|wanted| Duration::try_from(wanted).ok());
        if let (None, Some(wanted)) = (self.shared.plan.interval, wanted) {
            self.set_interval(wanted);
        }
    }

    /// A new interval starts at a random point, so that the agents stay spread over it.
    fn set_interval(&mut self, interval: Duration) {
        if interval != self.interval && !interval.is_zero() {
            self.interval = interval;
            self.next_sample = Instant::now() + interval.mul_f64(rand::random());
        }
    }

    fn apply_orders(&mut self, orders: &Orders) -> Option<StreamEnd> {
        if let Some(interval) = orders.interval {
            self.set_interval(interval);
        }
        if orders.leave {
            return Some(StreamEnd::Left);
        }
        if orders.cuts > self.cuts {
            self.cuts = orders.cuts;
            return Some(StreamEnd::Cut);
        }
        None
    }
}

impl Session {
    /// Removes the reports that an acknowledgement covers, and returns how many they are.
    fn settle(&mut self, up_to: u64) -> u64 {
        let waiting = &self.ends[..self.in_flight];
        let done = waiting.iter().filter(|end| **end <= up_to).count();
        self.ends.copy_within(done..self.in_flight, 0);
        self.in_flight -= done;
        done as u64
    }
}

fn drain_slot(drain: &Drain) -> Duration {
    let slot = drain.reconnect_after.unwrap_or_default();
    Duration::try_from(slot).unwrap_or_default()
}
