//! When rejected registrations should come back.
//!
//! **Retry delays are spread.** If all rejected callers came back at the same time, they would wait and be rejected
//! again together. A [`Schedule`] therefore hands out consecutive instants, as far apart as registrations end: their
//! recent mean duration, divided by how many run at once. An instant in the past is worth nothing, so
//! the schedule never falls behind the present; and it never runs further ahead than [`MAX_RETRY_DELAY`], so that a
//! client is not sent away for minutes after an overload has ended.
//!
//! **Instants are overbooked.** [`CALLERS_PER_END`] callers share each expected end. The mean is measured while
//! the overload lasts, when registrations are slowest, and some callers do not come back at all. A caller that is early
//! only waits once more; an instant that no caller uses is lost.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// The assumed duration of a registration before the first one has ended.
pub(super) const INITIAL_DURATION: Duration = Duration::from_millis(10);
/// The weight of the past in the mean duration: roughly this many registrations.
const AVERAGED_OVER: u32 = 16;
pub(super) const CALLERS_PER_END: u32 = 2;

#[derive(Debug)]
pub(super) struct Schedule {
    /// How many registrations run at once.
    at_once: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// A moving average over recent registrations.
    mean_duration: Duration,
    /// The last instant that was handed out.
    booked_until: Instant,
}

impl Schedule {
    pub(super) fn new(at_once: u32) -> Self {
        Self {
            at_once,
            state: Mutex::new(State {
                mean_duration: INITIAL_DURATION,
                booked_until: Instant::now(),
            }),
        }
    }

    /// The delay after which a rejected caller should come back.
    pub(super) fn retry_delay(&self, now: Instant) -> Duration {
        let mut state = lock(&self.state);
        let interval = state.mean_duration / self.at_once / CALLERS_PER_END;
        let next = state.booked_until.max(now) + interval;
        state.booked_until = next.min(now + MAX_RETRY_DELAY);
        state.booked_until - now
    }

    /// A registration has ended after this time.
    pub(super) fn record(&self, duration: Duration) {
        let mut state = lock(&self.state);
        let mean = state.mean_duration * (AVERAGED_OVER - 1) + duration;
        state.mean_duration = mean / AVERAGED_OVER;
    }
}
