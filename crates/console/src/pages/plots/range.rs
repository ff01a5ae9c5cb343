//! The ranges of time that a host's plots can show, and the one on which its page opens.

use jiff::Timestamp;
use serde::Deserialize;

/// A range, and the resolution that it is read in.
#[derive(Debug)]
pub struct Range {
    pub name: &'static str,
    /// As people read it.
    pub text: &'static str,
    pub(super) hours: i64,
    /// `None`: single samples.
    pub(super) step: Option<(&'static str, i64)>,
    pub(super) source: &'static str,
}

macro_rules! ranges {
    ($($name:literal, $text:literal: $hours:expr, $step:expr, $source:literal;)+) => {
        [$(Range { name: $name, text: $text, hours: $hours, step: $step, source: $source }),+]
    };
}

pub const RANGES: &[Range] = &ranges! {
    "1h", "1 h": 1, None, "every sample";
    "24h", "24 h": 24, None, "every sample";
    "7d", "7 d": 7 * 24, Some(("hour", 3600)), "hourly means";
    "30d", "30 d": 30 * 24, Some(("hour", 3600)), "hourly means";
    "1y", "1 y": 365 * 24, Some(("day", 86_400)), "daily means";
};

/// A host of fewer hours opens on the shortest range.
const YOUNG: i64 = 6;

impl Range {
    pub fn find(name: &str) -> Option<&'static Self> {
        RANGES.iter().find(|range| range.name == name)
    }

    /// The range on which the page of a host opens: a day, less for a young host, and more for one that has stopped.
    pub fn opening(began: Timestamp, latest: Option<Timestamp>, now: Timestamp) -> &'static Self {
        let hours = |at| now.duration_since(at).as_hours();
        let silent = latest.map_or(0, hours);
        let least = match hours(began) < YOUNG && silent < 1 {
            true => 1,
            false => 24,
        };
        let shows = |range: &&Self| range.hours >= least && range.hours > silent;
        let longest = &RANGES[RANGES.len() - 1];
        RANGES.iter().find(shows).unwrap_or(longest)
    }
}

#[derive(Deserialize)]
pub struct Asked {
    #[serde(default)]
    range: String,
}

impl Asked {
    pub fn range(&self) -> Option<&'static Range> {
        Range::find(&self.range)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_host_opens_on_a_range_that_shows_something() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ago = |hours| now - SignedDuration::from_hours(hours);
        for (began, latest, range) in [
            (0, None, "1h"),
            (1, Some(0), "1h"),
            (5, Some(2), "24h"),
            (23, Some(0), "24h"),
            (9000, Some(0), "24h"),
            (9000, Some(30), "7d"),
            (30, Some(29), "7d"),
            (9000, Some(200), "30d"),
            (9000, Some(800), "1y"),
            (9999, Some(9000), "1y"),
            (-1, Some(-1), "1h"),
        ] {
            let opening = Range::opening(ago(began), latest.map(ago), now);
            assert_eq!(opening.name, range, "{began} {latest:?}");
        }
    }
}
