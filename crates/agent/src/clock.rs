//! The agent's time, as a value: what it measures by goes through a [`Clock`], so
//! that a test can let a whole day pass in a minute. What is waited for on the
//! network (deadlines, backoff, the service's hints) is the network's own time, and
//! does not.
//!
//! Invariant: [`ServiceTime`] never follows the wall clock's steps. It starts from
//! what the wall clock said once, goes on by a clock that only counts (also while
//! the machine is suspended), and is set right by every Welcome.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// The machine's clocks, or a faster imitation of them.
#[derive(Clone, Debug)]
pub struct Clock {
    rate: u32,
    /// When a faster clock shows the real time.
    meets: SystemTime,
    /// How far somebody has moved the wall clock, in milliseconds.
    moved: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self::faster(1, SystemTime::UNIX_EPOCH)
    }

    /// A clock that runs `rate` times as fast, from the past, and is right at `meets`.
    pub fn faster(rate: u32, meets: SystemTime) -> Self {
        Self {
            rate,
            meets,
            moved: Arc::default(),
        }
    }

    /// What the machine's wall clock shows; somebody may move it.
    pub fn wall(&self) -> SystemTime {
        let moved = self.moved.load(Ordering::Relaxed);
        shifted(self.seen(SystemTime::now()), moved)
    }

    /// Moves the wall clock, as NTP or a person would.
    pub fn move_wall(&self, millis: i64) {
        self.moved.fetch_add(millis, Ordering::Relaxed);
    }

    /// Counts on, whatever happens to the wall clock, also while the machine is suspended.
    pub fn steady(&self) -> Duration {
        let since_boot = clock_gettime(ClockId::Boottime);
        Duration::try_from(since_boot).unwrap_or_default() * self.rate
    }

    /// A moment of real time, as this clock shows it.
    pub fn seen(&self, real: SystemTime) -> SystemTime {
        match self.meets.duration_since(real) {
            Ok(before) => self.meets - before * self.rate,
            Err(after) => self.meets + after.duration() * self.rate,
        }
    }

    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration / self.rate).await;
    }
}

/// What time it is by the service, as far as the agent knows.
#[derive(Clone, Debug)]
pub struct ServiceTime {
    clock: Clock,
    at: SystemTime,
    steady: Duration,
}

impl ServiceTime {
    /// From the wall clock, until the service says better.
    pub fn new(clock: Clock) -> Self {
        Self {
            at: clock.wall(),
            steady: clock.steady(),
            clock,
        }
    }

    pub fn now(&self) -> SystemTime {
        self.at + self.clock.steady().saturating_sub(self.steady)
    }

    /// The service says what time it is; returns how far off this was, in milliseconds.
    pub fn set(&mut self, server_time: SystemTime) -> i64 {
        let told = self.clock.seen(server_time);
        let off = millis_between(self.now(), told);
        (self.at, self.steady) = (told, self.clock.steady());
        off
    }
}

/// `to` − `from`.
fn millis_between(from: SystemTime, to: SystemTime) -> i64 {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match to.duration_since(from) {
        Ok(ahead) => millis(ahead),
        Err(behind) => -millis(behind.duration()),
    }
}

/// A time moved by so many milliseconds; where it cannot be, it stays.
pub(crate) fn shifted(at: SystemTime, millis: i64) -> SystemTime {
    let by = Duration::from_millis(millis.unsigned_abs());
    let moved = if millis < 0 {
        at.checked_sub(by)
    } else {
        at.checked_add(by)
    };
    moved.unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn steps_of_the_wall_clock_change_nothing() {
        let clock = Clock::system();
        let time = ServiceTime::new(clock.clone());
        let before = time.now();
        clock.move_wall(-86_400_000);
        assert!(time.now() >= before && time.now() < before + HOUR);
        assert!(clock.wall() < before - HOUR);
    }

    #[test]
    fn the_service_sets_it_right_and_says_by_how_much() {
        let clock = Clock::system();
        clock.move_wall(-7_200_000);
        let mut time = ServiceTime::new(clock);
        let real = SystemTime::now();
        let off = time.set(real);
        assert!((7_100_000..7_300_000).contains(&off), "{off}");
        assert!(time.now() >= real && time.now() < real + HOUR);
    }

    #[test]
    fn a_faster_clock_starts_in_the_past_and_is_right_in_the_end() {
        let meets = SystemTime::now() + Duration::from_secs(60);
        let clock = Clock::faster(1440, meets);
        let day = meets.duration_since(clock.wall()).unwrap();
        assert!(day > 23 * HOUR && day <= 24 * HOUR, "{day:?}");
        assert_eq!(clock.seen(meets), meets);
        let service = meets - Duration::from_secs(30);
        assert_eq!(clock.seen(service), meets - 12 * HOUR);
    }
}
