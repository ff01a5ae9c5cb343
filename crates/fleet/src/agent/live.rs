//! A stream's life: reports on time, acknowledgements into the ledger, and how it ends.

use std::time::Duration;

use svc_proto::v1::{Ack, Drain, Settings, heartbeat_response::Message as Hear};
use tokio::time::{Instant, sleep_until};

use super::{Agent, link::Link, lost::Lost, open::bearer};
use crate::{ledger::Settled, plan::Orders, wire};

/// The service takes no third report while two wait to be stored.
const REPORTS_OUT: u8 = 2;
/// After this long without an acknowledgement an agent asks whether anybody is there.
const PROBE_AFTER_US: u64 = 20_000_000;
/// How long an agent that left by itself stays away, at most.
const CHURN_PAUSE: Duration = Duration::from_secs(10);

/// Why an agent no longer lives on a stream.
pub(super) enum Over {
    Lost(Lost),
    /// The slot it was given has come; the old stream stays until there is a new one.
    Drained(Box<Link>),
    /// It left by itself, and comes back after this.
    Away(Duration),
    Leave(Box<Link>),
}

/// What the stream's loop keeps.
struct Session {
    link: Box<Link>,
    out: u8,
    /// The numbers that end the reports which are out.
    ends: [u64; REPORTS_OUT as usize],
    drain_at: Option<Instant>,
}

impl Agent {
    pub(super) async fn live(&mut self, link: Box<Link>) -> Over {
        let mut session = Session {
            link,
            out: 0,
            ends: [0; REPORTS_OUT as usize],
            drain_at: None,
        };
        self.take_due(Instant::now());
        let mut step = self.report(&mut session).map(|()| None);
        loop {
            match step {
                Ok(None) => {}
                Ok(Some(Leaving::Drained)) => return Over::Drained(session.link),
                Ok(Some(Leaving::For(pause))) => return Over::Away(pause),
                Ok(Some(Leaving::Churn)) => {
                    let _ = session.link.say(self.shared.goodbye());
                    let goodbye = session.link.leave(bytes::Bytes::new());
                    let _ = tokio::time::timeout(super::GOODBYE_PATIENCE, goodbye).await;
                    return Over::Away(CHURN_PAUSE.mul_f64(rand::random()));
                }
                Ok(Some(Leaving::ForGood)) => return Over::Leave(session.link),
                Err(lost) => {
                    self.disconnected();
                    self.shared.tally(|tally| tally.counts.lost += 1);
                    return Over::Lost(lost);
                }
            }
            step = self.step(&mut session).await;
        }
    }

    async fn step(&mut self, session: &mut Session) -> Result<Option<Leaving>, Lost> {
        let wake_at = session
            .drain_at
            .map_or(self.next_sample, |at| at.min(self.next_sample));
        tokio::select! {
            said = session.link.hear() => if let Some(said) = said? {
                self.heard(session, said)?;
            },
            () = sleep_until(wake_at) => return self.woke(session).await,
            changed = self.orders.changed() => {
                if changed.is_err() {
                    return Ok(Some(Leaving::ForGood));
                }
                let orders = self.orders.borrow_and_update().clone();
                return Ok(self.heed(&orders));
            }
        }
        Ok(None)
    }

    fn heard(&mut self, session: &mut Session, said: Hear) -> Result<(), Lost> {
        match said {
            Hear::Ack(ack) => {
                self.acknowledged(session, &ack);
                self.report(session)?;
            }
            Hear::Credential(credential) => {
                self.bearer = bearer(&credential.jwt).or(self.bearer.take());
            }
            Hear::Settings(settings) => self.settings(&settings),
            Hear::Drain(drain) => session.drain_at = Some(Instant::now() + slot(&drain)),
            Hear::Welcome(_) => {}
        }
        Ok(())
    }

    async fn woke(&mut self, session: &mut Session) -> Result<Option<Leaving>, Lost> {
        let now = Instant::now();
        if session.drain_at.is_some_and(|at| at <= now) {
            return Ok(Some(Leaving::Drained));
        }
        if session.out == 0 && self.may_churn() {
            return Ok(Some(Leaving::Churn));
        }
        if self.shared.plan.closed_loop && session.out == REPORTS_OUT {
            self.next_sample = now + self.interval;
            self.shared.tally(|tally| tally.counts.held += 1);
        }
        self.take_due(now);
        self.report(session)?;
        self.look_for_life(session).await?;
        Ok(None)
    }

    /// Takes the samples whose time has come, however many they are.
    pub(super) fn take_due(&mut self, now: Instant) {
        let quiet = self.orders.borrow().quiet;
        let each = self.shared.plan.report_samples.max(1);
        let (mut taken, mut held) = (0, 0);
        while self.next_sample <= now {
            let age = now.duration_since(self.next_sample).as_millis() as i64;
            for _ in 0..if quiet { 0 } else { each } {
                match self.ledger.take(self.clock_ms() - age) {
                    true => taken += 1,
                    false => held += 1,
                }
            }
            self.next_sample += self.interval;
        }
        self.shared.tally(|tally| {
            tally.counts.taken += taken;
            tally.counts.held += held;
        });
    }

    fn report(&mut self, session: &mut Session) -> Result<(), Lost> {
        while session.out < REPORTS_OUT && self.ledger.has_unsent() {
            let samples = self.ledger.next_report(self.shared.now_us());
            let Some(last) = samples.last() else { break };
            session.ends[usize::from(session.out)] = last.seq;
            session.out += 1;
            let report = wire::report(&self.shared.vitals, samples.into_iter());
            session.link.say(report)?;
            self.shared.tally(|tally| tally.counts.reports += 1);
        }
        Ok(())
    }

    fn acknowledged(&mut self, session: &mut Session, ack: &Ack) {
        let settled = session.settle(ack.up_to_seq);
        let now_us = self.shared.now_us();
        let samples = self
            .ledger
            .acknowledged(ack.up_to_seq, ack.rejected.len(), now_us);
        let rejected = ack.rejected.len() as u64;
        self.shared.tally(|tally| {
            tally.counts.reports_acked += settled;
            tally.counts.rejected += rejected;
        });
        self.settled(&samples, settled);
    }

    /// The first acknowledgement after a mark says that this agent is back.
    pub(super) fn settled(&mut self, settled: &Settled, reports: u64) {
        let (mark, cuts) = {
            let orders = self.orders.borrow();
            (orders.mark, orders.cuts)
        };
        let back = reports > 0 && mark > self.mark && cuts == self.cuts;
        if back {
            self.mark = mark;
        }
        self.shared.tally(|tally| {
            tally.counts.back += u64::from(back);
            tally.counts.acked += settled.samples;
            if let Some(us) = settled.slowest_us {
                tally.clocks.ack.record(us);
            }
        });
    }

    async fn look_for_life(&mut self, session: &mut Session) -> Result<(), Lost> {
        let now_us = self.shared.now_us();
        let waiting = self.ledger.waiting_since_us();
        match waiting.filter(|since| now_us.saturating_sub(*since) > PROBE_AFTER_US) {
            Some(_) => session.link.probe().await,
            None => Ok(()),
        }
    }

    pub(super) fn settings(&mut self, settings: &Settings) {
        let wanted = settings.heartbeat_interval;
        let wanted = wanted.and_then(|wanted| Duration::try_from(wanted).ok());
        if let (None, Some(wanted)) = (self.shared.plan.interval, wanted) {
            self.pace(wanted);
        }
    }

    /// A new interval begins at a random point of it, so that agents stay spread.
    fn pace(&mut self, interval: Duration) {
        if interval != self.interval && !interval.is_zero() {
            self.interval = interval;
            self.next_sample = Instant::now() + interval.mul_f64(rand::random());
        }
    }

    fn heed(&mut self, orders: &Orders) -> Option<Leaving> {
        if let Some(interval) = orders.interval {
            self.pace(interval);
        }
        if orders.leave {
            return Some(Leaving::ForGood);
        }
        if orders.copies > 0.0 {
            self.be_copied(orders.copies);
        }
        if orders.cuts > self.cuts || orders.away.is_some() {
            self.cuts = orders.cuts;
            return Some(Leaving::For(Duration::ZERO));
        }
        None
    }

    /// Chances are such that the mean stay is what was ordered. Only who waits for nothing leaves.
    fn may_churn(&self) -> bool {
        let stay = self.orders.borrow().churn;
        stay.is_some_and(|stay| {
            let chance = self.interval.as_secs_f64() / stay.as_secs_f64();
            rand::random::<f64>() < chance
        })
    }
}

enum Leaving {
    Drained,
    For(Duration),
    Churn,
    ForGood,
}

impl Session {
    /// How many reports an acknowledgement covers.
    fn settle(&mut self, up_to: u64) -> u64 {
        let out = usize::from(self.out);
        let done = self.ends[..out].iter().filter(|end| **end <= up_to).count();
        self.ends.copy_within(done..out, 0);
        self.out -= done as u8;
        done as u64
    }
}

fn slot(drain: &Drain) -> Duration {
    let slot = drain.reconnect_after.unwrap_or_default();
    Duration::try_from(slot).unwrap_or_default()
}
