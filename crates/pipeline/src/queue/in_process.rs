//! The in-process queue: bounded by samples and by bytes, sharded by agent.
//!
//! **Bounds.** Two semaphores count the free samples and the free bytes. A parcel holds its permits, in its [`Slot`], from
//! the push until it is settled, so the bounds include what the consumer is processing. Waiting pushes get permits in
//! arrival order. A later push cannot overtake them: tokio gives released permits to waiters first, so `try_acquire`
//! fails while there are any. All pushes acquire samples before bytes, so two of them cannot wait for each other.
//!
//! **Order.** A push appends to its shard under the shard's lock, and a receiver takes from the front. Each shard has one
//! receiver, so an agent's parcels reach the consumer in order. A parcel that was put back is delivered before newer
//! ones once its delay has passed, because later parcels of its agent can be stored only after it.
//!
//! **Locks.** Dropping a [`Slot`] locks its shard, so no slot may be dropped while the lock is held. Code that holds the
//! lock only moves entries. The slots that are left when a shard itself is dropped find their `Weak` dead, and do not
//! lock.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    mem,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use futures_util::future::ready;
use svc_common::sync::lock;
use svc_store::Range;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{
    Batch, Delivery, Depth, Handle, Parcel, PushFuture, Receipt, SHARDS, Ticket, shard_of, weight,
};

/// After how long a parcel that was put back is delivered again.
pub(super) const REDELIVERY_DELAY: Duration = Duration::from_millis(100);
/// How long a receiver waits for a parcel.
const WAIT: Duration = Duration::from_millis(200);

/// How much the in-process queue holds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub samples: u32,
    pub bytes: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            samples: 100_000,
            bytes: 64 << 20,
        }
    }
}

/// The in-process queue.
#[derive(Clone, Debug)]
pub struct InProcess(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bounds: Bounds,
    samples: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    shards: [Arc<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    contents: Mutex<Contents>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Contents {
    ready: VecDeque<Queued>,
    /// Parcels that were put back, in the order of the instants at which they are due.
    put_back: VecDeque<(Instant, Queued)>,
    /// When each parcel that is not settled was pushed, by position. Includes those that the consumer processes.
    unsettled: BTreeMap<u64, Instant>,
    next_position: u64,
}

/// A parcel in the queue.
#[derive(Debug)]
struct Queued {
    parcel: Parcel,
    /// How often it was delivered before.
    earlier: u32,
    slot: Slot,
}

/// A parcel's position and its permits. Dropping it settles the parcel.
#[derive(Debug)]
pub struct Slot {
    /// Weak, because the shard contains the slot.
    shard: Weak<Shard>,
    position: u64,
    _permits: Permits,
}

/// For samples and for bytes.
type Permits = [OwnedSemaphorePermit; 2];

/// The consumer's end of one shard.
#[derive(Debug)]
pub struct Receiver(Arc<Shard>);

impl InProcess {
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Inner {
            bounds,
            samples: Arc::new(Semaphore::new(bounds.samples as usize)),
            bytes: Arc::new(Semaphore::new(bounds.bytes as usize)),
            shards: Default::default(),
        }))
    }

    /// See [`Queue::push`](super::Queue::push).
    pub fn push(&self, parcel: Parcel) -> PushFuture {
        let size = self.0.size_of(&parcel.range);
        match self.0.try_acquire(size) {
            Some(permits) => PushFuture::Left(ready(self.0.add(parcel, permits))),
            None => {
                let queue = self.0.clone();
                PushFuture::Right(Box::pin(async move {
                    let permits = queue.acquire(size).await;
                    queue.add(parcel, permits)
                }))
            }
        }
    }

    pub fn receiver(&self, shard: usize) -> Receiver {
        Receiver(self.0.shards[shard].clone())
    }

    pub fn gone(&self, tickets: &[Ticket]) -> HashSet<Ticket> {
        let is_gone = |ticket: &&Ticket| {
            let contents = lock(&self.0.shards[ticket.shard].contents);
            !contents.unsettled.contains_key(&ticket.position)
        };
        tickets.iter().filter(is_gone).copied().collect()
    }

    pub fn depth(&self) -> Depth {
        let used = |free: &Semaphore, all: u32| u64::from(all) - free.available_permits() as u64;
        let (mut ranges, mut oldest) = (0, Duration::ZERO);
        for shard in &self.0.shards {
            let contents = lock(&shard.contents);
            ranges += contents.unsettled.len() as u64;
            let first = contents.unsettled.first_key_value();
            oldest = oldest.max(first.map_or(Duration::ZERO, |(_, pushed_at)| pushed_at.elapsed()));
        }
        Depth {
            ranges,
            samples: Some(used(&self.0.samples, self.0.bounds.samples)),
            bytes: used(&self.0.bytes, self.0.bounds.bytes),
            oldest,
            lag: ranges,
        }
    }
}

impl Inner {
    /// The samples and bytes that a range occupies. A range that is larger than the whole queue occupies all of it.
    fn size_of(&self, range: &Range) -> [u32; 2] {
        let capped = |size: usize, all: u32| u32::try_from(size).unwrap_or(all).min(all);
        [
            capped(range.samples.len().max(1), self.bounds.samples),
            capped(size_of::<Queued>() + weight(range), self.bounds.bytes),
        ]
    }

    fn try_acquire(&self, [samples, bytes]: [u32; 2]) -> Option<Permits> {
        let samples = self.samples.clone().try_acquire_many_owned(samples).ok()?;
        let bytes = self.bytes.clone().try_acquire_many_owned(bytes).ok()?;
        Some([samples, bytes])
    }

    async fn acquire(&self, [samples, bytes]: [u32; 2]) -> Permits {
        let samples = self.samples.clone().acquire_many_owned(samples).await;
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await;
        match (samples, bytes) {
            (Ok(samples), Ok(bytes)) => [samples, bytes],
            _ => std::future::pending().await, // Unreachable: the semaphores are never closed.
        }
    }

    fn add(&self, parcel: Parcel, permits: Permits) -> Ticket {
        let shard = shard_of(parcel.range.agent_id);
        let position = self.shards[shard].add(parcel, permits);
        Ticket { shard, position }
    }
}

impl Shard {
    fn add(self: &Arc<Self>, parcel: Parcel, permits: Permits) -> u64 {
        let mut contents = lock(&self.contents);
        let position = contents.next_position;
        contents.next_position += 1;
        contents.unsettled.insert(position, Instant::now());
        let slot = Slot {
            shard: Arc::downgrade(self),
            position,
            _permits: permits,
        };
        contents.ready.push_back(Queued {
            parcel,
            earlier: 0,
            slot,
        });
        drop(contents);
        self.arrived.notify_one();
        position
    }
}

impl Contents {
    fn take(&mut self, most: Batch) -> Vec<Delivery> {
        let (mut taken, mut samples) = (Vec::new(), 0);
        while taken.len() < most.ranges && samples < most.samples {
            let Some(entry) = self.next_entry() else {
                break;
            };
            samples += entry.parcel.range.samples.len();
            taken.push(entry.into());
        }
        taken
    }

    fn next_entry(&mut self) -> Option<Queued> {
        let now = Instant::now();
        match self.put_back.pop_front_if(|(due, _)| *due <= now) {
            Some((_, entry)) => Some(entry),
            None => self.ready.pop_front(),
        }
    }
}

impl From<Queued> for Delivery {
    fn from(entry: Queued) -> Self {
        let receipt = Receipt {
            earlier: entry.earlier,
            handle: Handle::InProcess(entry.slot),
        };
        Self {
            parcel: entry.parcel,
            receipt,
        }
    }
}

impl Receiver {
    pub async fn batch(&mut self, most: Batch) -> Vec<Delivery> {
        let deadline = Instant::now() + WAIT;
        loop {
            let (taken, due) = {
                let mut contents = lock(&self.0.contents);
                let taken = contents.take(most);
                (taken, contents.put_back.front().map(|(due, _)| *due))
            };
            if !taken.is_empty() || Instant::now() >= deadline {
                return taken;
            }
            let until = due.map_or(deadline, |due| due.min(deadline));
            let arrived = self.0.arrived.notified();
            drop(tokio::time::timeout_at(until.into(), arrived).await);
        }
    }

    pub fn available(&mut self, most: Batch) -> Vec<Delivery> {
        lock(&self.0.contents).take(most)
    }

    pub fn remaining(&mut self) -> Vec<Delivery> {
        let mut contents = lock(&self.0.contents);
        let put_back = mem::take(&mut contents.put_back);
        let ready = mem::take(&mut contents.ready);
        let put_back = put_back.into_iter().map(|(_, entry)| entry);
        put_back.chain(ready).map(Into::into).collect()
    }
}

impl Slot {
    pub fn put_back(self, parcel: Parcel, earlier: u32) {
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        let entry = Queued {
            parcel,
            earlier,
            slot: self,
        };
        let due = Instant::now() + REDELIVERY_DELAY;
        lock(&shard.contents).put_back.push_back((due, entry));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(shard) = self.shard.upgrade() {
            lock(&shard.contents).unsettled.remove(&self.position);
        }
    }
}
