//! The agent's clocks.
//!
//! Three clocks matter. The *wall clock* shows the time of day, but NTP or a person may set
//! it to any value at any moment. The *steady clock* (`CLOCK_BOOTTIME`) counts from the boot,
//! also while the machine is suspended, and cannot be set, but it knows no date. The
//! *service's time* is the one that samples carry, so that the samples of all hosts are
//! comparable and pass the service's rules about time.
//!
//! [`ServiceTime`] derives the service's time from an [`Anchor`]: one pair of service time
//! and steady time. Invariant: it never follows steps of the wall clock. The wall clock is
//! read once, when no anchor is known; from then on the steady clock advances the time, and
//! every Welcome replaces the anchor. An anchor stays valid until the next boot, when the
//! steady clock starts at zero, so the agent saves it together with the boot id.
//!
//! The agent measures through a [`Clock`], so that a test can let a day pass in a minute.
//! Waits for the network (deadlines, backoff, hints) use real time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// The machine's clocks, or a simulation that starts in the past, runs faster, and meets the
/// real time in the end.
#[derive(Clone, Debug)]
pub struct Clock {
    rate: u32,
    began: Duration,
    /// When the simulation reaches the real time, by the steady clock and the wall clock.
    meets: (Duration, SystemTime),
    /// How far a test has moved the wall clock, in milliseconds.
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

    /// A clock that runs `rate` times as fast for `length`, and shows the real time from
    /// then on.
    pub fn faster(rate: u32, length: Duration) -> Self {
        let began = since_boot();
        Self {
            rate,
            began,
            meets: (began + length, SystemTime::now() + length),
            moved: Arc::default(),
        }
    }

    /// The time of the machine's wall clock.
    pub fn wall(&self) -> SystemTime {
        let moved = self.moved.load(Ordering::Relaxed);
        shifted(self.simulated(SystemTime::now()), moved)
    }

    /// Moves the wall clock, as NTP or a person does.
    pub fn move_wall(&self, millis: i64) {
        self.moved.fetch_add(millis, Ordering::Relaxed);
    }

    /// The steady clock: the time since the boot.
    pub fn steady(&self) -> Duration {
        let now = since_boot();
        let fast = now.min(self.meets.0).saturating_sub(self.began);
        self.began + fast * self.rate + now.saturating_sub(self.meets.0)
    }

    /// The time that this clock shows at a moment of real time.
    pub fn simulated(&self, real: SystemTime) -> SystemTime {
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

/// The service's time at one moment of the steady clock. It is valid until the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub at: SystemTime,
    pub steady: Duration,
}

/// The service's time, as far as the agent knows it.
#[derive(Clone, Debug)]
pub struct ServiceTime {
    clock: Clock,
    anchor: Anchor,
    /// A Welcome of this boot set it.
    is_confirmed: bool,
}

impl ServiceTime {
    /// Starts from a known anchor, or from the wall clock until the first Welcome. An anchor
    /// ahead of the steady clock is of another boot and is ignored.
    pub fn new(clock: Clock, known: Option<Anchor>) -> Self {
        let steady = clock.steady();
        let known = known.filter(|anchor| anchor.steady <= steady);
        let is_confirmed = known.is_some();
        let anchor = known.unwrap_or_else(|| Anchor {
            at: clock.wall(),
            steady,
        });
        Self {
            clock,
            anchor,
            is_confirmed,
        }
    }

    /// The time, if a Welcome of this boot has confirmed it.
    pub fn confirmed_now(&self) -> Option<SystemTime> {
        self.is_confirmed.then(|| self.now())
    }

    pub fn now(&self) -> SystemTime {
        self.anchor.at + self.clock.steady().saturating_sub(self.anchor.steady)
    }

    pub fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Sets the service's time.
    pub fn set(&mut self, server_time: SystemTime) {
        self.anchor = Anchor {
            at: self.clock.simulated(server_time),
            steady: self.clock.steady(),
        };
        self.is_confirmed = true;
    }
}

/// Adds milliseconds to a time; a result out of range leaves it unchanged.
fn shifted(at: SystemTime, millis: i64) -> SystemTime {
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
    fn steps_of_the_wall_clock_do_not_change_the_service_time() {
        let clock = Clock::system();
        let time = ServiceTime::new(clock.clone(), None);
        let before = time.now();
        clock.move_wall(-86_400_000);
        assert!(time.now() >= before && time.now() < before + HOUR);
        assert!(clock.wall() < before - HOUR);
    }

    #[test]
    fn the_service_sets_the_time_and_a_restart_keeps_it() {
        let clock = Clock::system();
        clock.move_wall(-7_200_000);
        let mut time = ServiceTime::new(clock.clone(), None);
        let real = SystemTime::now();
        time.set(real);
        assert!(time.now() >= real && time.now() < real + HOUR);
        let again = ServiceTime::new(clock.clone(), Some(time.anchor()));
        assert!(again.now() >= real && again.now() < real + HOUR);
        // An anchor of another boot can be ahead of the steady clock.
        let ahead = Anchor {
            at: real,
            steady: clock.steady() + HOUR,
        };
        assert!(ServiceTime::new(clock, Some(ahead)).now() < real);
    }

    #[test]
    fn a_faster_clock_starts_in_the_past_and_reaches_the_real_time() {
        let clock = Clock::faster(1440, Duration::from_secs(60));
        let meets = clock.meets.1;
        let day = meets.duration_since(clock.wall()).unwrap();
        assert!(day > 23 * HOUR && day <= 24 * HOUR, "{day:?}");
        assert_eq!(clock.simulated(meets), meets);
        assert_eq!(clock.simulated(meets + HOUR), meets + HOUR);
        let service = meets - Duration::from_secs(30);
        assert_eq!(clock.simulated(service), meets - 12 * HOUR);
    }
}
