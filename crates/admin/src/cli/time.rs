//! Times relative to now: `3 min ago`, `in 6 days`.

use jiff::Timestamp;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Rounded to the largest unit that is still precise enough.
pub fn relative(then: Timestamp, now: Timestamp) -> String {
    let distance = then.duration_since(now);
    let seconds = distance.as_secs().unsigned_abs();
    let rounded = |unit: u64| (seconds + unit / 2) / unit;
    let amount = match seconds {
        0..5 => return "now".into(),
        5..MINUTE => format!("{seconds} s"),
        _ if rounded(MINUTE) < 60 => format!("{} min", rounded(MINUTE)),
        _ if rounded(HOUR) < 48 => format!("{} h", rounded(HOUR)),
        _ => format!("{} days", rounded(DAY)),
    };
    if distance.is_negative() {
        format!("{amount} ago")
    } else {
        format!("in {amount}")
    }
}

/// How long a state has lasted: `for 3 min`.
pub fn lasting(since: Option<Timestamp>) -> String {
    let text = when(since);
    match text.strip_suffix(" ago") {
        Some(amount) => format!("for {amount}"),
        None => text,
    }
}

/// Relative to this machine's clock; a dash where the time is not known.
pub fn when(then: Option<Timestamp>) -> String {
    then.map_or_else(|| "-".into(), |then| relative(then, Timestamp::now()))
}

/// The instant, followed by its distance from now.
pub fn in_full(then: Timestamp) -> String {
    let second = then.round(jiff::Unit::Second).unwrap_or(then);
    format!("{second} ({})", relative(then, Timestamp::now()))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    fn after(seconds: i64) -> String {
        let now = Timestamp::UNIX_EPOCH;
        relative(now + SignedDuration::from_secs(seconds), now)
    }

    #[test]
    fn the_unit_depends_on_the_distance() {
        for (seconds, text) in [
            (0, "now"),
            (-4, "now"),
            (-42, "42 s ago"),
            (59, "in 59 s"),
            (60, "in 1 min"),
            (-200, "3 min ago"),
            (3569, "in 59 min"),
            (3570, "in 1 h"),
            (7 * 86_400 - 1, "in 7 days"),
            (6 * 86_400, "in 6 days"),
            (-47 * 3600, "47 h ago"),
            (-48 * 3600, "2 days ago"),
            (-400 * 86_400, "400 days ago"),
        ] {
            assert_eq!(after(seconds), text);
        }
    }

    proptest! {
        #[test]
        fn past_and_future_mirror_each_other(seconds in 5_i64..10_000_000_000) {
            let (future, past) = (after(seconds), after(-seconds));
            prop_assert_eq!(future.strip_prefix("in "), past.strip_suffix(" ago"));
        }
    }
}
