//! When a sample was taken: a time, or a moment of the steady clock.
//!
//! Until the first Welcome of a boot the agent does not know the time. The wall clock may be
//! wrong by years, so a time from it would be worse than none. Such a sample carries the
//! moment of the steady clock and the boot it belongs to. The sample is dated when it is
//! sent, because every session begins with a Welcome. A sample of another boot cannot be
//! dated any more and becomes a gap.
//!
//! Both forms fit the 64 bits of a frame's header, so the format of the spool is unchanged.
//! A time is nanoseconds since 1970. A moment is a number below [`MOMENTS`], which as a time
//! would be in the years 1677 to 1823: 24 bits of a hash of the boot id, and 38 bits of
//! milliseconds, which is eight years without a reboot. An older agent that reads such a
//! frame takes it for a sample of that year, and gives it up as too old.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::Anchor;

/// Every smaller number is a moment.
const MOMENTS: i64 = i64::MIN + (1 << (BOOT_BITS + MILLIS_BITS));
const BOOT_BITS: u32 = 24;
const MILLIS_BITS: u32 = 38;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(i64);

/// A boot of the machine, as stamps remember it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boot(u32);

impl Boot {
    /// FNV-1a: it must only tell the boots of one machine apart.
    pub fn new(boot_id: &str) -> Self {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = boot_id.bytes().fold(0x811c_9dc5, mix);
        Self(hash >> (32 - BOOT_BITS))
    }
}

impl Stamp {
    /// Times outside 1823 to 2262 become the nearest one within.
    pub fn time(at: SystemTime) -> Self {
        Self(nanos(at).max(MOMENTS))
    }

    pub fn moment(boot: Boot, steady: Duration) -> Self {
        let most = (1_u64 << MILLIS_BITS) - 1;
        let millis = u64::try_from(steady.as_millis()).map_or(most, |millis| millis.min(most));
        let bits = u64::from(boot.0) << MILLIS_BITS | millis;
        Self(i64::MIN.saturating_add_unsigned(bits))
    }

    pub fn from_raw(raw: i64) -> Self {
        Self(raw)
    }

    pub fn raw(self) -> i64 {
        self.0
    }

    pub fn is_moment(self) -> bool {
        self.0 < MOMENTS
    }

    /// The time; `None` for a moment of another boot.
    pub fn dated(self, boot: Boot, anchor: Anchor) -> Option<SystemTime> {
        if !self.is_moment() {
            return Some(from_nanos(self.0));
        }
        let bits = self.0.abs_diff(i64::MIN);
        let steady = Duration::from_millis(bits & ((1 << MILLIS_BITS) - 1));
        let is_of_this_boot = bits >> MILLIS_BITS == u64::from(boot.0);
        let dated = match steady.checked_sub(anchor.steady) {
            Some(after) => anchor.at.checked_add(after),
            None => anchor.at.checked_sub(anchor.steady - steady),
        };
        dated.filter(|_| is_of_this_boot)
    }
}

/// Nanoseconds since 1970. Times outside 1677 to 2262 become the nearest one within.
pub(crate) fn nanos(at: SystemTime) -> i64 {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(-i64::MAX, |n| -n),
    }
}

pub(crate) fn from_nanos(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    match nanos {
        0.. => UNIX_EPOCH + distance,
        _ => UNIX_EPOCH - distance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn anchor() -> Anchor {
        Anchor {
            at: UNIX_EPOCH + 500_000 * HOUR,
            steady: 10 * HOUR,
        }
    }

    #[test]
    fn a_moment_is_dated_within_its_boot_only() {
        let (boot, other) = (Boot::new("boot-1"), Boot::new("boot-2"));
        assert_ne!(boot, other);
        for (steady, time) in [(9 * HOUR, 499_999), (12 * HOUR, 500_002)] {
            let stamp = Stamp::moment(boot, steady);
            assert!(stamp.is_moment());
            let stored = Stamp::from_raw(stamp.raw());
            assert_eq!(stored.dated(boot, anchor()), Some(UNIX_EPOCH + time * HOUR));
            assert_eq!(stored.dated(other, anchor()), None);
        }
        assert!(Stamp::moment(boot, Duration::MAX).is_moment());
    }

    #[test]
    fn a_time_stays_what_it_is() {
        let boot = Boot::new("boot");
        for at in [UNIX_EPOCH, UNIX_EPOCH + 500_000 * HOUR, UNIX_EPOCH - HOUR] {
            let stamp = Stamp::time(at);
            assert!(!stamp.is_moment());
            assert_eq!(stamp.dated(boot, anchor()), Some(at));
        }
        assert!(!Stamp::time(UNIX_EPOCH - 3_000_000 * HOUR).is_moment());
    }

    #[test]
    fn times_round_trip_and_extremes_are_clamped() {
        for n in [0, 1, -1, 1_800_000_000_123_456_789, -i64::MAX, i64::MAX] {
            assert_eq!(nanos(from_nanos(n)), n);
        }
        assert_eq!(nanos(UNIX_EPOCH + Duration::from_secs(1 << 40)), i64::MAX);
    }
}
