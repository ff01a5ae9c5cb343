//! The report budget: how many bytes the reports of all streams may take between the socket and the queue.
//!
//! A stream takes room for a report before it reads it, and again before it decodes it; it reads nothing while it
//! waits, so HTTP/2 flow control holds the client back. The memory of an instance is therefore bounded however many
//! agents return at once (docs/sizing.md).
//!
//! - **Reading.** A report that is larger than [`SMALL_REPORT`] takes room for its bytes. A smaller one is part of the
//!   memory of its connection and takes none, so that clients that send slowly cannot keep heartbeats out.
//! - **Decoding.** Every report takes room for the most that its bytes can decode to, and returns at once what it does
//!   not need. It keeps the rest until the queue has it. Small and large reports have room of their own: the heartbeats
//!   of agents without a backlog do not wait behind the backlogs of others.
//! - **Opening.** A Register comes from a client that has proven nothing yet, a Hello from one that has proven an agent's key. If it
//!   is larger than [`SMALL_OPENING`], it takes room of its own kind until it is answered, so that strangers cannot take the room of
//!   agents' Hellos and reports. It waits for a short time only, and is then refused. A smaller one is part of the memory of its
//!   connection, which may have few calls until it is proven. So strangers that take all the room keep out only newcomers
//!   with a large message.
//!
//! **No deadlock.** Room is taken in one order: for reading, for decoding, then in the queue, which the consumer empties
//! by itself. A stream that waits holds only room of an earlier kind, so no two streams can wait for each other. A
//! client that never completes its report is ended as silent and returns its room; one that never completes a Register or
//! a Hello loses it by the deadline of the call.
//!
//! **Order.** Waiting streams get room in the order of their arrival. The wait of a stream is a future that the stream
//! keeps while it serves its mail, so it does not lose its place.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// About a dozen samples.
pub const SMALL_REPORT: usize = 4 * 1024;
/// Usual Register and Hello messages are smaller, even with 64 IP addresses and 64 hardware addresses.
pub const SMALL_OPENING: usize = 8 * 1024;

/// The bytes of each kind of room.
#[derive(Clone, Copy, Debug)]
pub struct BudgetBounds {
    pub reading: u32,
    /// For decoded large reports.
    pub large: u32,
    /// For decoded small reports.
    pub small: u32,
    /// For large Register messages, from their first byte to their answer.
    pub register: u32,
    /// For large Hello messages, from their first byte to their answer.
    pub hello: u32,
    /// How long a large Register or Hello waits for room. Less than the deadline of its call, so that the client gets the refusal.
    pub opening_wait: Duration,
}

impl Default for BudgetBounds {
    fn default() -> Self {
        Self {
            reading: 32 << 20,
            large: 32 << 20,
            small: 8 << 20,
            register: 8 << 20,
            hello: 8 << 20,
            opening_wait: Duration::from_secs(5),
        }
    }
}

#[derive(Debug)]
pub struct ReportBudget {
    reading: Pool,
    large: Pool,
    small: Pool,
    register: Pool,
    hello: Pool,
    opening_wait: Duration,
}

/// Room that a report has taken; dropping it returns it.
#[derive(Debug, Default)]
pub struct Room(Option<OwnedSemaphorePermit>);

/// Room, at once or after a wait.
pub enum Grant {
    Now(Room),
    Later(BoxFuture<'static, Room>),
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now(_) => "Now",
            Self::Later(_) => "Later",
        })
    }
}

impl ReportBudget {
    /// `waiting` counts the reports that wait for room.
    pub fn new(bounds: BudgetBounds, waiting: &Gauge) -> Self {
        Self {
            reading: Pool::new(bounds.reading, waiting),
            large: Pool::new(bounds.large, waiting),
            small: Pool::new(bounds.small, waiting),
            register: Pool::new(bounds.register, &Gauge::default()),
            hello: Pool::new(bounds.hello, &Gauge::default()),
            opening_wait: bounds.opening_wait,
        }
    }

    /// Room for the bytes of a report of this length.
    pub fn to_read(&self, length: usize) -> Grant {
        if length <= SMALL_REPORT {
            return Grant::Now(Room::default());
        }
        self.reading.take(length)
    }

    /// Room for a report of this length, which decodes to `decoded` bytes at most.
    pub fn to_decode(&self, length: usize, decoded: usize) -> Grant {
        let pool = if length <= SMALL_REPORT {
            &self.small
        } else {
            &self.large
        };
        pool.take(decoded)
    }

    /// Room for a Register of this length, or `None` if there was none for too long.
    pub async fn to_register(&self, length: usize) -> Option<Room> {
        self.register.open(length, self.opening_wait).await
    }

    /// Room for a Hello of this length, or `None` if there was none for too long.
    pub async fn to_greet(&self, length: usize) -> Option<Room> {
        self.hello.open(length, self.opening_wait).await
    }
}

impl Room {
    /// Returns the room beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.0 {
            let excess = permit.num_permits().saturating_sub(bytes);
            drop(permit.split(excess));
        }
    }
}

#[derive(Debug)]
struct Pool {
    free: Arc<Semaphore>,
    bytes: u32,
    waiting: Gauge,
}

impl Pool {
    fn new(bytes: u32, waiting: &Gauge) -> Self {
        Self {
            free: Arc::new(Semaphore::new(bytes as usize)),
            bytes,
            waiting: waiting.clone(),
        }
    }

    /// A message that is larger than the whole pool takes all of it.
    fn take(&self, bytes: usize) -> Grant {
        let bytes = u32::try_from(bytes).unwrap_or(self.bytes).min(self.bytes);
        if let Ok(permit) = self.free.clone().try_acquire_many_owned(bytes) {
            return Grant::Now(Room(Some(permit)));
        }
        let (free, waiting) = (self.free.clone(), WaitingReport::new(&self.waiting));
        Grant::Later(Box::pin(async move {
            let permit = free.acquire_many_owned(bytes).await;
            drop(waiting);
            Room(permit.ok()) // The semaphore is never closed.
        }))
    }

    async fn open(&self, length: usize, wait: Duration) -> Option<Room> {
        if length <= SMALL_OPENING {
            return Some(Room::default());
        }
        match self.take(length) {
            Grant::Now(room) => Some(room),
            Grant::Later(room) => timeout(wait, room).await.ok(),
        }
    }
}

/// One report in the gauge of waiting ones.
struct WaitingReport(Gauge);

impl WaitingReport {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for WaitingReport {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LARGE: usize = 100 * 1024;

    fn budget(waiting: &Gauge) -> ReportBudget {
        let bounds = BudgetBounds {
            reading: 150 * 1024,
            large: 1 << 20,
            small: 1 << 20,
            register: 100 * 1024,
            hello: 100 * 1024,
            ..BudgetBounds::default()
        };
        ReportBudget::new(bounds, waiting)
    }

    fn now(grant: Grant) -> Option<Room> {
        match grant {
            Grant::Now(room) => Some(room),
            Grant::Later(_) => None,
        }
    }

    #[test]
    fn a_large_report_waits_for_room_and_a_small_one_does_not() {
        let waiting = Gauge::default();
        let budget = budget(&waiting);
        let first = now(budget.to_read(LARGE)).expect("room for one");
        let Grant::Later(mut second) = budget.to_read(LARGE) else {
            panic!("room for two");
        };
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(waiting.get(), 1);
        assert!(now(budget.to_read(SMALL_REPORT)).is_some());
        drop(first);
        let room = second.now_or_never().expect("the room of the first");
        assert_eq!(waiting.get(), 0);
        assert!(now(budget.to_read(LARGE)).is_none());
        drop(room);
    }

    #[test]
    fn a_decoded_report_returns_what_it_does_not_need() {
        let budget = budget(&Gauge::default());
        let mut room = now(budget.to_decode(LARGE, 2 << 20)).expect("all of the room");
        assert!(now(budget.to_decode(LARGE, 2 << 20)).is_none());
        room.shrink_to(1000);
        assert_eq!(budget.large.free.available_permits(), (1 << 20) - 1000);
        assert!(now(budget.to_decode(SMALL_REPORT, 1000)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_opening_waits_for_a_short_time_and_a_small_one_not_at_all() {
        let budget = budget(&Gauge::default());
        let held = budget.to_register(60 * 1024).await;
        assert!(held.is_some() && budget.to_register(60 * 1024).await.is_none());
        assert!(budget.to_register(SMALL_OPENING).await.is_some());
        assert!(budget.to_greet(60 * 1024).await.is_some());
        let (room, ()) = tokio::join!(budget.to_register(60 * 1024), async { drop(held) });
        assert!(room.is_some());
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_no_trace() {
        let waiting = Gauge::default();
        let budget = budget(&waiting);
        let first = now(budget.to_read(LARGE));
        let second = budget.to_read(LARGE);
        drop((second, first));
        assert_eq!(waiting.get(), 0);
        assert_eq!(budget.reading.free.available_permits(), 150 * 1024);
    }
}
