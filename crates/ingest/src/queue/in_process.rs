//! The queue in this process: bounded by samples and by bytes, sharded by agent.
//!
//! A parcel holds its share of the room from the push until it is settled, so that
//! the bounds hold for what the consumer has in its hands too. When there is no
//! room, who pushes waits, first come, first served.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::ready;
use svc_store::{GapRow, Range, SampleRow};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{Batch, Delivery, Depth, Handle, Parcel, Pushing, Receipt, SHARDS, Ticket, shard_of};

/// How long a parcel stays away that was put back.
const AWAY: Duration = Duration::from_millis(100);
/// How long a receiver waits for something to come.
const WAIT: Duration = Duration::from_millis(200);

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
    waiting: VecDeque<Entry>,
    /// What was put back, in the order of its return.
    away: VecDeque<(Instant, Entry)>,
    /// Everything that is not settled, wherever it is, by its position: since when.
    open: BTreeMap<u64, Instant>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    parcel: Parcel,
    since: SystemTime,
    again: bool,
    place: Place,
}

/// A parcel's place and its share of the room, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    /// Weak, because the shard holds the place.
    shard: Weak<Shard>,
    position: u64,
    _room: Room,
}

/// Of samples and of bytes.
type Room = [OwnedSemaphorePermit; 2];

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

    /// Who finds no room waits for it, first come, first served.
    pub fn push(&self, parcel: Parcel) -> Pushing {
        let need = self.0.need(&parcel.range);
        match self.0.try_room(need) {
            Some(room) => Pushing::Left(ready(self.0.add(parcel, room))),
            None => {
                let queue = self.0.clone();
                Pushing::Right(Box::pin(async move {
                    let room = queue.room(need).await;
                    queue.add(parcel, room)
                }))
            }
        }
    }

    pub fn receiver(&self, shard: usize) -> Receiver {
        Receiver(self.0.shards[shard].clone())
    }

    pub fn gone(&self, tickets: &[Ticket]) -> HashSet<Ticket> {
        let is_gone = |ticket: &&Ticket| {
            let contents = self.0.shards[ticket.shard].contents();
            !contents.open.contains_key(&ticket.position)
        };
        tickets.iter().filter(is_gone).copied().collect()
    }

    pub fn depth(&self) -> Depth {
        let used = |room: &Semaphore, all: u32| u64::from(all) - room.available_permits() as u64;
        let (mut ranges, mut oldest) = (0, Duration::ZERO);
        for shard in &self.0.shards {
            let contents = shard.contents();
            ranges += contents.open.len() as u64;
            let since = contents.open.first_key_value();
            oldest = oldest.max(since.map_or(Duration::ZERO, |(_, since)| since.elapsed()));
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
    /// A range's share of samples and bytes; one that is larger than all of the room needs all of it.
    fn need(&self, range: &Range) -> [u32; 2] {
        let share = |size: usize, all: u32| u32::try_from(size).unwrap_or(all).min(all);
        [
            share(range.samples.len().max(1), self.bounds.samples),
            share(weight(range), self.bounds.bytes),
        ]
    }

    fn try_room(&self, [samples, bytes]: [u32; 2]) -> Option<Room> {
        let samples = self.samples.clone().try_acquire_many_owned(samples).ok()?;
        let bytes = self.bytes.clone().try_acquire_many_owned(bytes).ok()?;
        Some([samples, bytes])
    }

    async fn room(&self, [samples, bytes]: [u32; 2]) -> Room {
        let samples = self.samples.clone().acquire_many_owned(samples).await;
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await;
        match (samples, bytes) {
            (Ok(samples), Ok(bytes)) => [samples, bytes],
            _ => std::future::pending().await, // Never: nobody closes the semaphores.
        }
    }

    fn add(&self, parcel: Parcel, room: Room) -> Ticket {
        let shard = shard_of(parcel.range.agent_id);
        let position = self.shards[shard].add(parcel, room);
        Ticket { shard, position }
    }
}

/// What a range takes in memory, about.
fn weight(range: &Range) -> usize {
    let disks = range.samples.iter().flat_map(|sample| &sample.disks);
    let disks = disks.map(|disk| {
        let text = disk.mount_point.len() + disk.device.len() + disk.fs_type.len();
        mem::size_of_val(disk) + text
    });
    let gaps = range
        .gaps
        .iter()
        .map(|gap| size_of::<GapRow>() + gap.reason.len());
    size_of::<Entry>()
        + range.samples.len() * size_of::<SampleRow>()
        + disks.sum::<usize>()
        + gaps.sum::<usize>()
}

impl Shard {
    fn add(self: &Arc<Self>, parcel: Parcel, room: Room) -> u64 {
        let mut contents = self.contents();
        let position = contents.next;
        contents.next += 1;
        contents.open.insert(position, Instant::now());
        let place = Place {
            shard: Arc::downgrade(self),
            position,
            _room: room,
        };
        contents.waiting.push_back(Entry {
            parcel,
            since: SystemTime::now(),
            again: false,
            place,
        });
        drop(contents);
        self.arrived.notify_one();
        position
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What has come back goes first: others may wait for it.
    fn next_entry(&mut self) -> Option<Entry> {
        let now = Instant::now();
        let back = self.away.pop_front_if(|(due, _)| *due <= now);
        let back = back.map(|(_, entry)| entry);
        back.or_else(|| self.waiting.pop_front())
    }
}

impl From<Entry> for Delivery {
    fn from(entry: Entry) -> Self {
        let receipt = Receipt {
            since: entry.since,
            again: entry.again,
            handle: Handle::InProcess(entry.place),
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
                let mut contents = self.0.contents();
                let taken = contents.take(most);
                (taken, contents.away.front().map(|(due, _)| *due))
            };
            if !taken.is_empty() || Instant::now() >= deadline {
                return taken;
            }
            let until = due.map_or(deadline, |due| due.min(deadline));
            let arrived = self.0.arrived.notified();
            drop(tokio::time::timeout_at(until.into(), arrived).await);
        }
    }

    pub fn rest(&mut self) -> Vec<Delivery> {
        let mut contents = self.0.contents();
        let away = mem::take(&mut contents.away).into_iter();
        let away: Vec<Entry> = away.map(|(_, entry)| entry).collect();
        let waiting = mem::take(&mut contents.waiting);
        away.into_iter().chain(waiting).map(Into::into).collect()
    }
}

impl Place {
    pub fn put_back(self, parcel: Parcel, since: SystemTime) {
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        let entry = Entry {
            parcel,
            since,
            again: true,
            place: self,
        };
        let back = Instant::now() + AWAY;
        shard.contents().away.push_back((back, entry));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.contents().open.remove(&self.position);
        }
    }
}
