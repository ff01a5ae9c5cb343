//! Hours of the week in which updates go on.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, civil::Time, civil::Weekday, tz::TimeZone};

/// Some days of the week and a part of each, in UTC. None: always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hours(Option<Window>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    first: Weekday,
    last: Weekday,
    from: Time,
    to: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hours have the form mon-fri 08:00-16:00, in UTC, not {0:?}")]
pub struct HoursError(String);

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

impl Hours {
    /// The days may pass the end of the week (sat-mon), the times midnight (22:00-04:00); what is after midnight belongs to
    /// the day before.
    pub fn contain(self, at: Timestamp) -> bool {
        let Some(Window {
            first,
            last,
            from,
            to,
        }) = self.0
        else {
            return true;
        };
        let at = at.to_zoned(TimeZone::UTC);
        let (day, time) = (at.weekday(), at.time());
        let on = |day: Weekday| first.until(day) <= first.until(last);
        match from < to {
            true => on(day) && from <= time && time < to,
            false => on(day) && from <= time || on(day.previous()) && time < to,
        }
    }
}

impl FromStr for Hours {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Hours, HoursError> {
        let text = text.trim().to_ascii_lowercase();
        if text.is_empty() {
            return Ok(Hours(None));
        }
        let day = |name: &str| DAYS.iter().find(|(known, _)| *known == name);
        let time = |text: &str| Time::strptime("%H:%M", text).ok();
        let window = || {
            let (days, times) = text.split_once(' ')?;
            let (first, last) = days.split_once('-').unwrap_or((days, days));
            let (from, to) = times.trim().split_once('-')?;
            Some(Window {
                first: day(first)?.1,
                last: day(last)?.1,
                from: time(from)?,
                to: time(to)?,
            })
        };
        let window = window().ok_or_else(|| HoursError(text.clone()))?;
        Ok(Hours(Some(window)))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(window) = self.0 else {
            return Ok(());
        };
        let name = |day: Weekday| DAYS.iter().find(|(_, known)| *known == day);
        let name = |day| name(day).map_or("", |(name, _)| *name);
        let (first, last) = (name(window.first), name(window.last));
        let (from, to) = (window.from.strftime("%H:%M"), window.to.strftime("%H:%M"));
        write!(f, "{first}-{last} {from}-{to}")
    }
}

impl serde::Serialize for Hours {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(hours: &str, at: &str) -> bool {
        let hours: Hours = hours.parse().unwrap();
        hours.contain(at.parse().unwrap())
    }

    #[test]
    fn hours_are_of_the_week_in_utc() {
        let office = "mon-fri 08:00-16:00";
        // A Thursday.
        assert!(within(office, "2026-11-19T08:00:00Z"));
        assert!(within(office, "2026-11-19T15:59:59Z"));
        assert!(!within(office, "2026-11-19T16:00:00Z"));
        assert!(!within(office, "2026-11-21T10:00:00Z"));
        assert!(within("", "2026-11-21T10:00:00Z"));
        assert!(within("sat 10:00-11:00", "2026-11-21T10:00:00Z"));
        let nights = "sat-mon 22:00-04:00";
        assert!(within(nights, "2026-11-22T03:00:00Z"));
        assert!(within(nights, "2026-11-24T03:00:00Z"));
        assert!(!within(nights, "2026-11-24T23:00:00Z"));
        assert!(!within(nights, "2026-11-21T03:00:00Z"));
        for wrong in [
            "mon",
            "mon-fri",
            "fun 08:00-09:00",
            "mon 25:00-26:00",
            "mon 8-9",
        ] {
            assert!(wrong.parse::<Hours>().is_err(), "{wrong:?}");
        }
        let shown = "Mon-Fri  08:00-16:00".parse::<Hours>().unwrap();
        assert_eq!(shown.to_string(), office);
        assert_eq!(shown.to_string().parse(), Ok(shown));
    }
}
