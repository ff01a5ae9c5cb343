//! Parsers of settings. An error says what is wrong; the reader adds the name and the value.

use std::{path::PathBuf, time::Duration};

use secrecy::SecretString;
use svc_proto::contract::limits::MAX_TEXT_BYTES;
use tracing::level_filters::LevelFilter;

use super::{LogFormat, UpdateMode};
use crate::wire::{Address, Exceptions, Proxy};

type Parsed<T> = Result<T, String>;

/// The fields of `AgentSettings`.
pub const PINNABLE: [&str; 8] = [
    "interval",
    "left_out",
    "ignored_mounts",
    "ignored_file_systems",
    "ignored_interfaces",
    "log",
    "spool_bytes",
    "update",
];

pub(super) fn addresses(text: &str) -> Parsed<Vec<Address>> {
    let parts = text.split(',').map(str::trim).filter_map(not_empty);
    let addresses: Vec<Address> = parts.map(str::parse).collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Err("names no address".into());
    }
    Ok(addresses)
}

pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    Ok(text.into())
}

pub(super) fn optional_path(text: &str) -> Parsed<Option<PathBuf>> {
    Ok(not_empty(text).map(PathBuf::from))
}

/// `direct` is for machines whose environment names a proxy that the agent must not use.
pub(super) fn proxy(text: &str) -> Parsed<Option<Proxy>> {
    match text {
        "" | "direct" => Ok(None),
        _ => text.parse().map(Some),
    }
}

pub(super) fn exceptions(text: &str) -> Parsed<Exceptions> {
    Ok(Exceptions::parse(text))
}

/// Checks only that the text can be sent. The service checks whether it is a valid token.
pub(super) fn token(text: &str) -> Parsed<Option<SecretString>> {
    let text = text.trim();
    if text.chars().any(char::is_whitespace) || text.len() > MAX_TEXT_BYTES {
        return Err("is not of a token's form".into());
    }
    Ok(not_empty(text).map(SecretString::from))
}

fn not_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn level(text: &str) -> Parsed<LevelFilter> {
    text.parse()
        .map_err(|_| "is none of error, warn, info, debug and trace".into())
}

pub(super) fn format(text: &str) -> Parsed<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is neither text nor json".into()),
    }
}

pub(super) fn size(text: &str) -> Parsed<u64> {
    let (number, unit) = split(text)?;
    let unit = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("is not a size: say for example 64MiB".into()),
    };
    let bytes = number.saturating_mul(unit);
    if !((1 << 20)..=(1 << 40)).contains(&bytes) {
        return Err("is not between 1MiB and 1024GiB".into());
    }
    Ok(bytes)
}

pub(super) fn update(text: &str) -> Parsed<UpdateMode> {
    match text {
        "auto" => Ok(UpdateMode::Auto),
        "on" => Ok(UpdateMode::On),
        "off" => Ok(UpdateMode::Off),
        _ => Err("is none of auto, on and off".into()),
    }
}

pub(super) fn pinned(text: &str) -> Parsed<Vec<&'static str>> {
    let names = text.split(',').map(str::trim).filter_map(not_empty);
    let field = |name: &str| PINNABLE.into_iter().find(|field| *field == name);
    let fields: Option<Vec<&str>> = names.map(field).collect();
    fields.ok_or_else(|| format!("names other fields than {}", PINNABLE.join(", ")))
}

pub(super) fn on_off(text: &str) -> Parsed<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("is neither on nor off".into()),
    }
}

pub(super) fn truth(text: &str) -> Parsed<bool> {
    text.parse().map_err(|_| "is neither true nor false".into())
}

pub(super) fn age(text: &str) -> Parsed<Duration> {
    let age = length(text)?;
    match (60..=86_400 * 366).contains(&age.as_secs()) {
        true => Ok(age),
        false => Err("is not between 1m and 366d".into()),
    }
}

pub(super) fn key_age(text: &str) -> Parsed<Option<Duration>> {
    match text {
        "off" => Ok(None),
        age_of_key => age(age_of_key).map(Some),
    }
}

pub(super) fn trial(text: &str) -> Parsed<Duration> {
    let trial = length(text)?;
    match (1..=86_400).contains(&trial.as_secs()) {
        true => Ok(trial),
        false => Err("is not between 1s and 1d".into()),
    }
}

fn length(text: &str) -> Parsed<Duration> {
    let (number, unit) = split(text)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("is not a length of time: say for example 7d or 12h".into()),
    };
    Ok(Duration::from_secs(number.saturating_mul(unit)))
}

fn split(text: &str) -> Parsed<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().map_err(|_| "does not begin with a number")?;
    Ok((number, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_need_units_and_have_bounds() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1 GiB"), Ok(1 << 30));
        assert_eq!(age("7d"), Ok(Duration::from_hours(168)));
        assert_eq!(age("90m"), Ok(Duration::from_mins(90)));
        for bad in [
            "",
            "MiB",
            "64MB",
            "-1MiB",
            "0",
            "99999999999999999999GiB",
            "2000GiB",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for bad in ["", "d", "7", "7w", "1s", "500d", "18446744073709551615d"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
