//! Permits of registrations: a limit on how many run at once, and retry delays for the others.
//!
//! A registration sends several queries to the database. If thousands started at once, each would finish some of its
//! queries, time out while it waits for a connection, and start over on the client's next attempt: the more clients,
//! the fewer would complete. So a registration needs a [`Permit`], and there are fewer permits than connections. A
//! registration that has started can therefore finish, and the database works at its full speed on it.
//!
//! **Known keys have permits of their own.** A crowd of new agents does not delay those that are registered already.
//! A known key may use a shared permit too.
//!
//! **Waiting is bounded.** A caller waits for a permit in arrival order, until the time that admission sets. After that it gets
//! a delay to retry after, which the client receives with `RESOURCE_EXHAUSTED`. Waiting callers need no limit of their
//! own: each occupies a stream of a connection, and the listener limits both.
//!
//! The delays are spread ([`Schedule`]).

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::schedule::Schedule;

/// Limits how many registrations run at once.
#[derive(Debug)]
pub(super) struct Permits {
    /// For every registration.
    shared: Arc<Semaphore>,
    /// For known keys only.
    known: Arc<Semaphore>,
    schedule: Schedule,
}

/// The right to run one registration, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    began: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Permits {
    /// For a bulkhead of this many connections. Two of them are left to the batches: lookups, newcomers, statuses and
    /// the opening of streams each use one connection at a time, and only for milliseconds.
    pub(super) fn for_pool(connections: usize) -> Self {
        let count = connections.saturating_sub(2).max(1);
        let known = match count {
            1 => 0, // The only permit is for everyone.
            _ => count.div_ceil(4),
        };
        Self {
            shared: Arc::new(Semaphore::new(count - known)),
            known: Arc::new(Semaphore::new(known)),
            schedule: Schedule::new(u32::try_from(count).unwrap_or(u32::MAX)),
        }
    }

    /// Waits for a permit, until `until` at most. The error is the delay after which the client should retry.
    pub(super) async fn admit(
        self: &Arc<Self>,
        key_known: bool,
        until: Instant,
    ) -> Result<Permit, Duration> {
        match timeout_at(until, self.acquire(key_known)).await {
            Ok(Ok(permit)) => Ok(Permit {
                permits: self.clone(),
                began: Instant::now(),
                _permit: permit,
            }),
            _ => Err(self.schedule.retry_delay(Instant::now())),
        }
    }

    /// A known key waits in both queues and leaves both with the first permit.
    async fn acquire(&self, key_known: bool) -> Result<OwnedSemaphorePermit, AcquireError> {
        let shared = self.shared.clone().acquire_owned();
        if !key_known {
            return shared.await;
        }
        tokio::select! {
            biased;
            permit = self.known.clone().acquire_owned() => permit,
            permit = shared => permit,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.schedule.record(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::schedule::{CALLERS_PER_END, INITIAL_DURATION, MAX_RETRY_DELAY},
        *,
    };

    const WAIT: Duration = Duration::from_secs(5);

    fn for_pool(connections: usize) -> Arc<Permits> {
        Arc::new(Permits::for_pool(connections))
    }

    async fn admit(permits: &Arc<Permits>, key_known: bool) -> Result<Permit, Duration> {
        permits.admit(key_known, Instant::now() + WAIT).await
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_wait_too_long_get_distinct_retry_delays() {
        let permits = for_pool(3);
        let _only = admit(&permits, false).await.unwrap();
        let began = Instant::now();
        let (first, second) = tokio::join!(admit(&permits, false), admit(&permits, true));
        assert!(began.elapsed() >= WAIT);
        let mut delays = [first.unwrap_err(), second.unwrap_err()];
        delays.sort();
        let interval = INITIAL_DURATION / CALLERS_PER_END; // There is one permit.
        assert_eq!(delays, [interval, 2 * interval]);
    }

    #[tokio::test(start_paused = true)]
    async fn known_keys_have_permits_that_new_keys_cannot_take() {
        let permits = for_pool(5);
        let [_one, _other] = [admit(&permits, false).await, admit(&permits, false).await];
        let began = Instant::now();
        let known = admit(&permits, true).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let (new, another) = tokio::join!(admit(&permits, false), admit(&permits, true));
        assert!(new.is_err() && another.is_err(), "there are three permits");
        drop((known, _one));
        let (new, known) = tokio::join!(admit(&permits, false), admit(&permits, true));
        assert!(new.is_ok() && known.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn retry_delays_follow_the_duration_of_registrations_and_are_bounded() {
        let permits = for_pool(1);
        for _ in 0..200 {
            let permit = admit(&permits, false).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(permit);
        }
        let now = Instant::now();
        let seconds = [(); 200].map(|()| permits.schedule.retry_delay(now).as_secs_f64().round());
        assert_eq!([1, 3, 5].map(|caller| seconds[caller]), [1.0, 2.0, 3.0]);
        assert_eq!(seconds[199], MAX_RETRY_DELAY.as_secs_f64());
        let later = permits.schedule.retry_delay(now + MAX_RETRY_DELAY);
        assert!(later < Duration::from_secs(1), "past instants do not count");
    }
}
