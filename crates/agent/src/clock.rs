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

/// The machine's clocks, or a faster imitation of them that ends in the present.
#[derive(Clone, Debug)]
pub struct Clock {
    rate: u32,
    began: Duration,
    /// When the imitation has caught up with the real time, by both real clocks.
    meets: (Duration, SystemTime),
    /// How far somebody has moved the wall clock, in milliseconds.
    moved: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self {
            rate: 1,
            began: Duration::ZERO,
            meets: (Duration::ZERO, SystemTime::UNIX_EPOCH),
            moved: Arc::default(),
        }
    }

    /// A clock that starts in the past, runs `rate` times as fast for so long, and is
    /// right from then on.
    pub fn faster(rate: u32, length: Duration) -> Self {
        let began = since_boot();
        Self {
            rate,
            began,
            meets: (began + length, SystemTime::now() + length),
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
        let now = since_boot();
        let fast = now.min(self.meets.0).saturating_sub(self.began);
        self.began + fast * self.rate + now.saturating_sub(self.meets.0)
    }

    /// A moment of real time, as this clock shows it.
    pub fn seen(&self, real: SystemTime) -> SystemTime {
        match self.meets.1.duration_since(real) {
            Ok(before) => self.meets.1 - before * self.rate,
            Err(_) => real,
        }
    }

    pub async fn sleep(&self, duration: Duration) {
        let has_met = since_boot() >= self.meets.0;
        let rate = if has_met { 1 } else { self.rate };
        tokio::time::sleep(duration / rate).await;
    }
}

fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// A moment of the service's time, and of the clock that only counts. It holds until
/// the machine is booted anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub at: SystemTime,
    pub steady: Duration,
}

/// What time it is by the service, as far as the agent knows.
#[derive(Clone, Debug)]
pub struct ServiceTime {
    clock: Clock,
    anchor: Anchor,
}

impl ServiceTime {
    /// From what the service said last, or from the wall clock until it says better.
    pub fn new(clock: Clock, known: Option<Anchor>) -> Self {
        let steady = clock.steady();
        let known = known.filter(|anchor| anchor.steady <= steady);
        let anchor = known.unwrap_or_else(|| Anchor {
            at: clock.wall(),
            steady,
        });
        Self { clock, anchor }
    }

    pub fn now(&self) -> SystemTime {
        self.anchor.at + self.clock.steady().saturating_sub(self.anchor.steady)
    }

    pub fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// The service says what time it is; returns how far off this was, in milliseconds.
    pub fn set(&mut self, server_time: SystemTime) -> i64 {
        let told = self.clock.seen(server_time);
        let off = millis_between(self.now(), told);
        self.anchor = Anchor {
            at: told,
            steady: self.clock.steady(),
        };
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
        let time = ServiceTime::new(clock.clone(), None);
        let before = time.now();
        clock.move_wall(-86_400_000);
        assert!(time.now() >= before && time.now() < before + HOUR);
        assert!(clock.wall() < before - HOUR);
    }

    #[test]
    fn the_service_sets_it_right_and_a_restart_does_not_forget() {
        let clock = Clock::system();
        clock.move_wall(-7_200_000);
        let mut time = ServiceTime::new(clock.clone(), None);
        let real = SystemTime::now();
        let off = time.set(real);
        assert!((7_100_000..7_300_000).contains(&off), "{off}");
        assert!(time.now() >= real && time.now() < real + HOUR);
        let again = ServiceTime::new(clock.clone(), Some(time.anchor()));
        assert!(again.now() >= real && again.now() < real + HOUR);
        // An anchor of another boot would lie ahead of the count.
        let ahead = Anchor {
            at: real,
            steady: clock.steady() + HOUR,
        };
        assert!(ServiceTime::new(clock, Some(ahead)).now() < real);
    }

    #[test]
    fn a_faster_clock_starts_in_the_past_and_is_right_in_the_end() {
        let clock = Clock::faster(1440, Duration::from_secs(60));
        let meets = clock.meets.1;
        let day = meets.duration_since(clock.wall()).unwrap();
        assert!(day > 23 * HOUR && day <= 24 * HOUR, "{day:?}");
        assert_eq!(clock.seen(meets), meets);
        assert_eq!(clock.seen(meets + HOUR), meets + HOUR);
        let service = meets - Duration::from_secs(30);
        assert_eq!(clock.seen(service), meets - 12 * HOUR);
    }
}
