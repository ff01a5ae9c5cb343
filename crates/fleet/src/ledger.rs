//! A virtual agent's books: what it took, what it was promised, and what it still owes.
//!
//! Invariant: every number up to `acked` was acknowledged to this agent, and the spool holds exactly
//! the numbers after it, in order. So nothing else need be kept of a sample than when it was taken
//! and when it was first sent, and an agent that is up to date keeps nothing at all.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::wire::Taken;

/// An hour's samples at 30 s are 120; an agent that holds this many takes no more.
const MOST: usize = 10_000;
/// The service takes at most 500 samples a report; this leaves it some air.
const REPORT: usize = 200;

/// A sample that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Pending {
    at_ms: i64,
    /// When it was first sent, in microseconds of the process; 0: not yet.
    sent_us: u64,
}

#[derive(Debug, Default)]
pub struct Ledger {
    /// What was acknowledged before this run.
    base: u64,
    acked: u64,
    rejected: u64,
    /// The highest number that the present stream was given.
    sent: u64,
    spool: VecDeque<Pending>,
    /// How far the service fell behind its own promises.
    broken: u64,
    greeted: bool,
}

/// What a run leaves of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    pub agent_id: String,
    pub base: u64,
    pub taken: u64,
    pub acked: u64,
    pub rejected: u64,
    pub broken: u64,
}

/// What an acknowledgement settled.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub samples: u64,
    /// How long the oldest of them took since it was first sent, in microseconds.
    pub slowest_us: Option<u64>,
}

impl Ledger {
    pub fn take(&mut self, at_ms: i64) -> bool {
        let room = self.spool.len() < MOST;
        if room {
            self.spool.push_back(Pending { at_ms, sent_us: 0 });
        }
        room
    }

    /// What the present stream was not given yet, as much as fits a report.
    pub fn next_report(&mut self, now_us: u64) -> Vec<Taken> {
        let first = self.sent - self.acked;
        let unsent = self.spool.iter_mut().skip(first as usize).take(REPORT);
        let mut samples = Vec::with_capacity(1);
        for (pending, seq) in unsent.zip(self.sent + 1..) {
            if pending.sent_us == 0 {
                pending.sent_us = now_us.max(1);
            }
            let at_ms = pending.at_ms;
            samples.push(Taken { seq, at_ms });
        }
        self.sent += samples.len() as u64;
        samples
    }

    /// A new stream begins: it has been given nothing beyond what is durable.
    pub fn welcomed(&mut self, acked_seq: u64, now_us: u64) -> Settled {
        if !self.greeted {
            self.greeted = true;
            (self.base, self.acked) = (acked_seq, acked_seq);
        }
        self.broken += self.acked.saturating_sub(acked_seq);
        let settled = self.settle(acked_seq, now_us);
        self.sent = self.acked;
        settled
    }

    pub fn acknowledged(&mut self, up_to_seq: u64, rejected: usize, now_us: u64) -> Settled {
        self.rejected += rejected as u64;
        self.settle(up_to_seq, now_us)
    }

    /// An acknowledgement of numbers that were never taken is a broken promise too.
    fn settle(&mut self, up_to: u64, now_us: u64) -> Settled {
        let promised = up_to.saturating_sub(self.acked);
        let known = promised.min(self.spool.len() as u64);
        self.broken += promised - known;
        let oldest = self.spool.front().filter(|_| known > 0);
        let sent_us = oldest.map_or(0, |pending| pending.sent_us);
        self.spool.drain(..known as usize);
        if self.spool.is_empty() {
            self.spool.shrink_to(4);
        }
        self.acked += known;
        self.sent = self.sent.max(self.acked);
        Settled {
            samples: known,
            slowest_us: (sent_us > 0).then(|| now_us.saturating_sub(sent_us)),
        }
    }

    pub fn has_unsent(&self) -> bool {
        self.sent - self.acked < self.spool.len() as u64
    }

    /// When the oldest sample that waits for its acknowledgement was first sent.
    pub fn waiting_since_us(&self) -> Option<u64> {
        let oldest = self.spool.front()?;
        (oldest.sent_us > 0).then_some(oldest.sent_us)
    }

    pub fn balance(&self, agent_id: &str) -> Balance {
        Balance {
            agent_id: agent_id.to_owned(),
            base: self.base,
            taken: self.acked + self.spool.len() as u64,
            acked: self.acked,
            rejected: self.rejected,
            broken: self.broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seqs(samples: &[Taken]) -> Vec<u64> {
        samples.iter().map(|sample| sample.seq).collect()
    }

    #[test]
    fn what_a_lost_stream_was_given_is_given_to_the_next() {
        let mut ledger = Ledger::default();
        ledger.welcomed(7, 1);
        assert!(ledger.take(100) && ledger.take(200));
        assert_eq!(seqs(&ledger.next_report(10)), [8, 9]);
        assert!(ledger.next_report(11).is_empty() && !ledger.has_unsent());
        ledger.welcomed(8, 50);
        assert_eq!(seqs(&ledger.next_report(60)), [9]);
        let settled = ledger.acknowledged(9, 0, 70);
        assert_eq!(
            settled,
            Settled {
                samples: 1,
                slowest_us: Some(60)
            }
        );
        let balance = ledger.balance("a");
        assert_eq!((balance.base, balance.taken, balance.acked), (7, 9, 9));
        assert_eq!(balance.broken, 0);
    }

    #[test]
    fn a_service_that_forgets_or_invents_breaks_its_promise() {
        let mut ledger = Ledger::default();
        ledger.welcomed(0, 1);
        ledger.take(1);
        ledger.next_report(1);
        ledger.acknowledged(1, 0, 2);
        ledger.welcomed(0, 3);
        assert_eq!(ledger.balance("a").broken, 1, "it forgot one");
        ledger.acknowledged(5, 0, 4);
        assert_eq!(ledger.balance("a").broken, 5, "it invented four");
    }

    proptest! {
        /// Whatever is taken, sent, acknowledged and lost: acknowledged numbers are settled once.
        #[test]
        fn every_sample_is_settled_once(steps in prop::collection::vec((0_u8..4, 0_u64..6), 0..60)) {
            let mut ledger = Ledger::default();
            ledger.welcomed(0, 1);
            let (mut taken, mut settled, mut durable, mut sent) = (0, 0, 0, 0);
            for (step, amount) in steps {
                match step {
                    0 => taken += u64::from(ledger.take(0)),
                    1 => sent = ledger.next_report(1).last().map_or(sent, |last| last.seq),
                    2 => {
                        durable = (durable + amount).min(sent);
                        settled += ledger.acknowledged(durable, 0, 2).samples;
                    }
                    _ => settled += ledger.welcomed(durable, 3).samples,
                }
            }
            let balance = ledger.balance("a");
            prop_assert_eq!(balance.taken, taken);
            prop_assert_eq!(balance.acked, settled);
            prop_assert_eq!(balance.acked, durable);
            prop_assert_eq!(balance.broken, 0);
        }
    }
}
