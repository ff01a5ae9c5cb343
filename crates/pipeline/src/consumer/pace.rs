//! When the consumer stores what it has gathered.
//!
//! A transaction costs as much as two dozen of its rows, whichever instance sends it. Many instances with few agents each must
//! not cost the database more than one instance with all of them, so batches adapt to the rate: the fewer reports
//! arrive, the longer a batch is gathered, up to `longest`. Three rules keep that from being felt:
//!
//! - **A lone report waits for nothing.** If no batch was stored within the last `longest`, a batch leaves at once. So
//!   an agent's first report, and every report of an instance with a handful of agents, is acknowledged immediately.
//! - **A backfill is never held up.** An agent that sends a backlog can send the next report only after an
//!   acknowledgement, so it would pay the wait for each of them. A report with more than one number, a second report of
//!   one agent, or a report that comes again makes the batch urgent.
//! - **A batch that is large enough does not wait for more** ([`ENOUGH`]).
//!
//! An urgent or large batch still leaves [`SHORTEST`] after the one before; only a full batch leaves at once.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use crate::queue::{BATCH, Delivery};

/// The shortest time from one batch to the next, unless a batch is full.
pub(super) const SHORTEST: Duration = Duration::from_millis(200);
/// With so many reports the cost of the transaction itself is small beside theirs.
pub(super) const ENOUGH: usize = 256;

#[derive(Debug)]
pub(super) struct Pace {
    /// The longest time from one batch to the next, while there are reports.
    longest: Duration,
    /// When the last batch was begun.
    last: Option<Instant>,
}

impl Pace {
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            longest,
            last: None,
        }
    }

    /// When this batch should be stored, if nothing is added to it. May be in the past.
    pub(super) fn due(&self, batch: &[Delivery], now: Instant) -> Instant {
        let Some(last) = self.last else {
            return now;
        };
        if BATCH.is_filled_by(batch) {
            return now;
        }
        match batch.len() >= ENOUGH || is_urgent(batch) {
            true => last + SHORTEST.min(self.longest),
            false => last + self.longest,
        }
    }

    /// A batch is being stored.
    pub(super) fn began(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

/// Whether an agent waits for this batch before it can go on.
fn is_urgent(batch: &[Delivery]) -> bool {
    let mut agents = HashSet::new();
    batch.iter().any(|delivery| {
        let range = &delivery.parcel.range;
        let backlog = range.last_seq > range.first_seq;
        backlog || delivery.receipt.is_redelivered() || !agents.insert(range.agent_id)
    })
}

#[cfg(test)]
mod tests {
    use svc_store::{AgentId, HostId, Range};
    use uuid::Uuid;

    use super::*;
    use crate::queue::{Bounds, InProcess, Origin, Parcel, Queue};

    const LONGEST: Duration = Duration::from_millis(900);

    /// Reports of these agents, with this many numbers each.
    async fn batch(agents: impl IntoIterator<Item = u128>, numbers: i64) -> Vec<Delivery> {
        let queue = Queue::InProcess(InProcess::new(Bounds::default()));
        for agent in agents {
            let range = Range {
                agent_id: AgentId(Uuid::from_u128(agent)),
                host_id: HostId(Uuid::nil()),
                first_seq: 1,
                last_seq: numbers,
                samples: Vec::new(),
                gaps: Vec::new(),
            };
            let origin = Origin {
                epoch: 1,
                instance: Uuid::nil(),
            };
            queue.push(Parcel { range, origin }).await;
        }
        let mut all = Vec::new();
        for mut receiver in queue.receivers() {
            all.extend(receiver.available(BATCH).await);
        }
        all
    }

    /// How long after the batch before this one is due.
    async fn wait(agents: impl IntoIterator<Item = u128>, numbers: i64) -> Duration {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        pace.began(now);
        pace.due(&batch(agents, numbers).await, now) - now
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_waits_for_others_only_if_a_batch_was_stored_just_before() {
        let mut pace = Pace::new(LONGEST);
        let (lone, now) = (batch([1], 1).await, Instant::now());
        assert_eq!(pace.due(&lone, now), now, "the first report of all");
        pace.began(now);
        assert_eq!(pace.due(&lone, now), now + LONGEST);
        let later = now + LONGEST * 5;
        assert!(pace.due(&lone, later) <= later, "nothing was stored lately");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_leaves_sooner_if_it_is_large_or_an_agent_waits_for_it() {
        assert_eq!(wait([1, 2, 3], 1).await, LONGEST);
        assert_eq!(wait(0..ENOUGH as u128, 1).await, SHORTEST);
        assert_eq!(wait([1], 2).await, SHORTEST, "a backlog");
        assert_eq!(wait([1, 2, 1], 1).await, SHORTEST, "two reports in flight");
        assert_eq!(wait(0..4000, 1).await, Duration::ZERO, "full");
    }
}
