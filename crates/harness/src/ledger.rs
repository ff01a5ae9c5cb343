//! What one agent has taken, sent and been acknowledged, as the agent itself saw it.
//!
//! Invariant: every number up to `acked` was acknowledged to this agent, and the spool holds exactly
//! the numbers after it, in order. A number is therefore implied by the position in the spool, and
//! the ledger keeps only two times for each sample. An agent that is up to date keeps nothing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// An agent with this many unacknowledged samples takes no more.
const SPOOL_CAPACITY: usize = 10_000;
/// The service accepts at most 500 samples in a report.
const REPORT_SAMPLES: usize = 200;

/// The number of a sample, and when it was taken in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub seq: u64,
    pub at_ms: i64,
}

/// A sample that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    at_ms: i64,
    /// When it was first sent, in microseconds since the process started; 0 if it was not.
    sent_us: u64,
}

#[derive(Debug, Default)]
pub struct Ledger {
    /// The watermark at the first Welcome.
    base: u64,
    acked: u64,
    rejected: u64,
    /// The highest number sent over the present stream.
    sent: u64,
    spool: VecDeque<Pending>,
    /// Numbers that the service first acknowledged and then forgot, or acknowledged without
    /// having received them.
    broken: u64,
    welcomed: bool,
}

/// The totals of a ledger, which the audit compares with the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    pub agent_id: String,
    pub base: u64,
    pub taken: u64,
    pub acked: u64,
    pub rejected: u64,
    pub broken: u64,
}

/// What one acknowledgement covered.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub samples: u64,
    /// Microseconds since the oldest of them was first sent.
    pub slowest_us: Option<u64>,
}

impl Ledger {
    /// Takes a sample, unless the spool is full.
    pub fn take(&mut self, at_ms: i64) -> bool {
        let room = self.spool.len() < SPOOL_CAPACITY;
        if room {
            self.spool.push_back(Pending { at_ms, sent_us: 0 });
        }
        room
    }

    /// The samples of the next report: those not sent over the present stream yet.
    pub fn next_report(&mut self, now_us: u64) -> Vec<Taken> {
        let first = self.sent - self.acked;
        let unsent = self
            .spool
            .iter_mut()
            .skip(first as usize)
            .take(REPORT_SAMPLES);
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

    /// A new stream begins. Everything after its watermark must be sent over it again.
    pub fn welcomed(&mut self, acked_seq: u64, now_us: u64) -> Settled {
        if !self.welcomed {
            self.welcomed = true;
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

    /// An acknowledgement of numbers that were never taken is a broken promise.
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

    /// When the oldest unacknowledged sample was first sent.
    pub fn waiting_since_us(&self) -> Option<u64> {
        let oldest = self.spool.front()?;
        (oldest.sent_us > 0).then_some(oldest.sent_us)
    }

    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// How many samples are not acknowledged.
    pub fn unacked(&self) -> usize {
        self.spool.len()
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
    fn a_new_stream_repeats_what_the_lost_one_did_not_get_acknowledged() {
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
    fn a_forgotten_or_invented_acknowledgement_is_a_broken_promise() {
        let mut ledger = Ledger::default();
        ledger.welcomed(0, 1);
        ledger.take(1);
        ledger.next_report(1);
        ledger.acknowledged(1, 0, 2);
        ledger.welcomed(0, 3);
        assert_eq!(ledger.balance("a").broken, 1, "one forgotten");
        ledger.acknowledged(5, 0, 4);
        assert_eq!(ledger.balance("a").broken, 5, "four invented");
    }

    proptest! {
        /// In any order of taking, sending, acknowledging and losing streams.
        #[test]
        fn every_acknowledged_sample_is_counted_once(steps in prop::collection::vec((0_u8..4, 0_u64..6), 0..60)) {
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
