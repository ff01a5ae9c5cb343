//! The rate that all downloads share, so that a fleet that updates leaves the network to others.

use std::{sync::Mutex, time::Duration};

use svc_common::sync::lock;
use tokio::time::{Instant, sleep_until};

/// What was not used is made up for, but no more of it: timers are no finer than a millisecond, and a chunk takes less.
const BURST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Throttle {
    bytes_a_second: f64,
    /// When the bytes that were promised so far have gone.
    next: Mutex<Instant>,
}

impl Throttle {
    pub fn new(bytes_a_second: u32) -> Self {
        Self {
            bytes_a_second: bytes_a_second.max(1).into(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many bytes may go. Downloads take turns, because each has one chunk under way.
    pub async fn take(&self, bytes: usize) {
        let at = self.promise(bytes, Instant::now());
        sleep_until(at).await;
    }

    fn promise(&self, bytes: usize, now: Instant) -> Instant {
        let mut next = lock(&self.next);
        let at = (*next).max(now.checked_sub(BURST).unwrap_or(now));
        *next = at + Duration::from_secs_f64(bytes as f64 / self.bytes_a_second);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_go_at_the_rate_and_a_pause_is_no_credit() {
        let throttle = Throttle::new(1000);
        let now = Instant::now() + Duration::from_secs(60);
        let first = throttle.promise(500, now);
        assert_eq!(now - first, BURST);
        assert_eq!(
            throttle.promise(500, now),
            first + Duration::from_millis(500)
        );
        assert_eq!(throttle.promise(1, now), first + Duration::from_secs(1));
    }
}
