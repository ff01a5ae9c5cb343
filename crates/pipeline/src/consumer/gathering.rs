//! What the consumers of a process have gathered, shard by shard, and which of it is stored in one batch.
//!
//! Each consumer gathers the reports of its shard. A transaction costs as much as two dozen of its rows. So a consumer
//! whose batch is due takes along what the other shards have gathered, as long as all of it together is less than
//! [`ENOUGH`]. With more, two writers are better than one, and each shard's reports are stored alone.
//!
//! **Order.** An agent's reports are stored one batch after the other: they are in one shard, and a shard stays locked
//! while its reports are stored, by whichever consumer.
//!
//! **No deadlock.** A consumer waits for the lock of its own shard only, and takes another shard only if that is free.
//! `deciding` may be held while waiting for a shard, because no consumer needs `deciding` to release a shard.
//!
//! **Why `deciding` exists.** Shards that were stored together are due again at the same moment. Two consumers could
//! then each lock their own shard, find the other one locked, and store two small batches. `deciding` lets one consumer
//! at a time look at the shards, or add to its own. So a consumer that holds it finds another shard locked only if that
//! shard is being stored, or is empty and waits for its first report.

use std::{sync::Arc, time::Duration};

use svc_common::periodic::sleep_until;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::pace::{ENOUGH, Pace, SHORTEST};
use crate::queue::{BATCH, Batch, Delivery, Queue, Receiver};

#[derive(Debug)]
pub struct Gathering {
    shards: Vec<Arc<Mutex<Shard>>>,
    deciding: Mutex<()>,
}

#[derive(Debug)]
struct Shard {
    receiver: Receiver,
    batch: Vec<Delivery>,
    pace: Pace,
}

/// A batch to be stored. Its shards are locked as long as this exists.
pub(super) struct Due {
    pub(super) batch: Vec<Delivery>,
    _shards: Vec<OwnedMutexGuard<Shard>>,
}

impl Gathering {
    /// `longest` is the longest time from one batch to the next, while there are reports.
    pub(super) fn new(queue: &Queue, longest: Duration) -> Self {
        let shard = |receiver| {
            Arc::new(Mutex::new(Shard {
                receiver,
                batch: Vec::new(),
                pace: Pace::new(longest),
            }))
        };
        Self {
            shards: queue.receivers().into_iter().map(shard).collect(),
            deciding: Mutex::default(),
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Waits for reports of this shard, and gathers what arrives until they are due, or until `stop`. Returns `None` if
    /// none arrived for a while, and if another consumer took them along. The queue is read in slices, because a report
    /// that makes the batch urgent may arrive at any time.
    pub(super) async fn next(&self, shard: usize, stop: &CancellationToken) -> Option<Due> {
        let mut own = self.lock(shard).await;
        own.batch = own.receiver.batch(BATCH).await;
        drop(own);
        loop {
            let due = match self.decide(shard, stop).await {
                NextBatch::Nothing => return None,
                NextBatch::Now(due) => return Some(due),
                NextBatch::At(due) => due,
            };
            let slice = due.min(Instant::now() + SHORTEST);
            if sleep_until(slice, stop).await {
                let _deciding = self.deciding.lock().await;
                self.lock(shard).await.add_available(BATCH).await;
            }
        }
    }

    async fn decide(&self, shard: usize, stop: &CancellationToken) -> NextBatch {
        let _deciding = self.deciding.lock().await;
        let own = self.lock(shard).await;
        if own.batch.is_empty() {
            return NextBatch::Nothing;
        }
        let now = Instant::now();
        let due = own.pace.due(&own.batch, now);
        match due <= now || stop.is_cancelled() {
            true => NextBatch::Now(self.take(own, shard, now).await),
            false => NextBatch::At(due),
        }
    }

    /// Takes the batch of this shard, and those of the others if all are small. Reports that are still in the queue of
    /// another shard are taken too. Otherwise they would wait for that shard's next batch, although they came before this
    /// one left.
    async fn take(&self, own: OwnedMutexGuard<Shard>, shard: usize, now: Instant) -> Due {
        let mut due = Due {
            batch: Vec::new(),
            _shards: Vec::new(),
        };
        due.add(own, now);
        for (other, lock) in self.shards.iter().enumerate() {
            if other == shard {
                continue;
            }
            let Ok(mut other) = lock.clone().try_lock_owned() else {
                continue;
            };
            let room = BATCH.after(&due.batch);
            if due.batch.len() + other.batch.len() < ENOUGH && !room.is_filled_by(&other.batch) {
                other.add_available(room).await;
                due.add(other, now);
            }
        }
        due
    }

    /// All reports of this shard that exist in this process alone, for the last batch before it ends.
    pub(super) async fn remaining(&self, shard: usize) -> Vec<Delivery> {
        self.lock(shard).await.receiver.remaining()
    }

    async fn lock(&self, shard: usize) -> OwnedMutexGuard<Shard> {
        self.shards[shard].clone().lock_owned().await
    }
}

/// When the next batch of a shard is stored.
enum NextBatch {
    Nothing,
    Now(Due),
    At(Instant),
}

impl Shard {
    /// Adds what has arrived, until the batch has `most`, unless another consumer took it along.
    async fn add_available(&mut self, most: Batch) {
        if !self.batch.is_empty() {
            let room = most.after(&self.batch);
            self.batch.extend(self.receiver.available(room).await);
        }
    }
}

impl Due {
    fn add(&mut self, mut shard: OwnedMutexGuard<Shard>, now: Instant) {
        if !shard.batch.is_empty() {
            shard.pace.began(now);
            self.batch.append(&mut shard.batch);
            self._shards.push(shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use svc_store::{AgentId, HostId, Range};
    use tokio::{
        join, select,
        time::{sleep, timeout},
    };
    use uuid::Uuid;

    use super::*;
    use crate::queue::{Bounds, InProcess, Origin, Parcel, shard_of};

    const LONGEST: Duration = Duration::from_millis(900);

    struct Test {
        queue: Queue,
        gathering: Gathering,
        stop: CancellationToken,
    }

    impl Test {
        /// Both shards have stored a batch just now.
        async fn new() -> Self {
            let queue = Queue::InProcess(InProcess::new(Bounds::default()));
            let test = Self {
                gathering: Gathering::new(&queue, LONGEST),
                queue,
                stop: CancellationToken::new(),
            };
            test.push(0..2).await;
            assert_eq!(test.next(0).await, Some(1));
            assert_eq!(test.next(1).await, Some(1));
            test
        }

        /// Pushes a report of each of these agents, of which the even ones are in shard 0.
        async fn push(&self, agents: impl IntoIterator<Item = u128>) {
            for agent in agents {
                let agent_id = AgentId(Uuid::from_u128(agent));
                assert_eq!(shard_of(agent_id), (agent % 2) as usize);
                let range = Range {
                    agent_id,
                    host_id: HostId(Uuid::nil()),
                    first_seq: 1,
                    last_seq: 1,
                    samples: Vec::new(),
                    gaps: Vec::new(),
                };
                let origin = Origin {
                    epoch: 1,
                    instance: Uuid::nil(),
                };
                self.queue.push(Parcel { range, origin }).await;
            }
        }

        /// How many reports the next batch of a consumer has.
        async fn next(&self, shard: usize) -> Option<usize> {
            let due = self.gathering.next(shard, &self.stop).await;
            due.map(|due| due.batch.len())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_reports_of_all_shards_leave_in_one_batch() {
        let test = Test::new().await;
        for _ in 0..3 {
            test.push(0..100).await;
            let (first, second) = join!(test.next(0), test.next(1));
            assert_eq!(first.or(second), Some(100), "{first:?} {second:?}");
            assert_eq!(first.and(second), None, "two batches");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_arrived_since_the_last_slice_leaves_too() {
        let test = Test::new().await;
        test.push([0, 1]).await;
        let (first, second, ()) = join!(test.next(0), test.next(1), async {
            sleep(LONGEST - Duration::from_millis(1)).await;
            test.push([2, 3]).await;
        });
        assert_eq!(first.or(second), Some(4), "{first:?} {second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_of_several_shards_is_not_larger_than_one() {
        let test = Test::new().await;
        test.push([0, 1]).await;
        let (first, second, ()) = join!(test.next(0), test.next(1), async {
            sleep(LONGEST - Duration::from_millis(1)).await;
            test.push((1..3000).map(|agent| agent * 2 + 1)).await;
        });
        let largest = first.max(second);
        assert_eq!(largest, Some(BATCH.ranges), "{first:?} {second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn many_reports_of_a_shard_leave_alone() {
        let test = Test::new().await;
        test.push((0..ENOUGH as u128).map(|agent| agent * 2)).await;
        test.push([1]).await;
        let both = join!(test.next(0), test.next(1));
        assert_eq!(both, (Some(ENOUGH), Some(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_waits_while_its_reports_are_stored_with_those_of_another() {
        let test = Test::new().await;
        test.push([0, 1]).await;
        let (storing, shard) = select! {
            due = test.gathering.next(0, &test.stop) => (due, 1),
            due = test.gathering.next(1, &test.stop) => (due, 0),
        };
        assert_eq!(storing.as_ref().map(|due| due.batch.len()), Some(2));
        test.push([shard as u128]).await;
        let waiting = timeout(LONGEST * 10, test.next(shard)).await;
        assert!(waiting.is_err(), "the earlier report is not stored yet");
        drop(storing);
        assert_eq!(test.next(shard).await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait() {
        let test = Test::new().await;
        test.push([0]).await;
        test.stop.cancel();
        let began = Instant::now();
        assert_eq!(test.next(0).await, Some(1));
        assert!(began.elapsed() < LONGEST);
    }
}
