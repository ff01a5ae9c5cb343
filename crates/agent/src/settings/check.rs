//! The check of each field of the settings that the service sends. A service may be wrong or hostile, so that nothing that is
//! out of bounds is used. Each field stands alone: a bad one is refused with a reason, and the others are valid.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use jiff::Timestamp;
use prost::Message;
use svc_proto::v1::{AgentSettings, LogLevel, RefusedSetting, TextList, UpdatePolicy};
use svc_release::Hours;
use tracing::level_filters::LevelFilter;

use crate::{
    config::{Config, UpdateMode},
    vitals::{Filter, PARTS},
    wire::{duration, system_time},
};

const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_hours(1);
const SPOOL_BYTES: RangeInclusive<u64> = (1 << 20)..=(4 << 30);
const LONGEST_LIST: usize = 32;
const LONGEST_TEXT: usize = 128;
const LONGEST_LOG: Duration = Duration::from_hours(7 * 24);
const LARGEST: usize = 2 * 1024;
const LONGEST_HASH: usize = 32;
const PINNED: &str = "pinned in agent.toml";
/// Of a reason, which may quote what was sent.
const LONGEST_REASON: usize = 200;
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// What the service decides instead of this machine's own configuration; `None`: it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    pub interval: Option<Duration>,
    pub filter: Filter,
    pub log: Option<Log>,
    pub spool_bytes: Option<u64>,
    pub update: Option<Update>,
    /// For people: by field, what is in force, or why it is not.
    pub shown: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LevelFilter,
    /// From then on the machine's own level is valid again.
    pub until: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    pub on: bool,
    /// When the agent may restart for one.
    pub hours: Hours,
}

impl InForce {
    pub fn allows_updates(&self) -> bool {
        self.update.is_none_or(|update| update.on)
    }

    pub fn allows_restart(&self, now: Timestamp) -> bool {
        let is_time = |update: Update| update.on && update.hours.contain(now);
        self.update.is_none_or(is_time)
    }
}

/// The value, and its text for people.
type Checked<T> = Result<(T, String), String>;

/// The agent repeats no other, because the service would not take it either.
pub fn is_hash(hash: &[u8]) -> bool {
    (1..=LONGEST_HASH).contains(&hash.len())
}

/// Why nothing of a message can be used.
pub fn unusable(given: &AgentSettings) -> Option<&'static str> {
    match given.encoded_len() {
        _ if !is_hash(&given.hash) => Some("is not 1 to 32 bytes long"),
        0..=LARGEST => None,
        _ => Some("belongs to settings of more than 2048 bytes"),
    }
}

/// Without a time, because the machine's may be wrong before it has heard the service's, no end of a log level is too far away.
pub fn check(
    given: &AgentSettings,
    config: &Config,
    now: Option<Timestamp>,
) -> (InForce, Vec<RefusedSetting>) {
    let (mut shown, mut refused) = (BTreeMap::new(), Vec::new());
    for name in &config.pinned {
        shown.insert((*name).into(), PINNED.into());
    }
    let mut checks = Checks {
        pinned: &config.pinned,
        shown: &mut shown,
        refused: &mut refused,
    };
    let mut list = |name, list: &Option<TextList>| {
        let checked = checks.field(name, list, |list| texts(name, &list.values));
        checked.unwrap_or_default()
    };
    let filter = Filter {
        parts: list("left_out", &given.left_out),
        mounts: list("ignored_mounts", &given.ignored_mounts),
        file_systems: list("ignored_file_systems", &given.ignored_file_systems),
        interfaces: list("ignored_interfaces", &given.ignored_interfaces),
    };
    let own = config.update;
    let in_force = InForce {
        interval: checks.field("interval", &given.interval, interval),
        filter,
        log: checks.field("log", &given.log, |given| log(given, now)),
        spool_bytes: checks.field("spool_bytes", &given.spool_bytes, spool),
        update: checks.field("update", &given.update, |given| update(given, own)),
        shown,
    };
    (in_force, refused)
}

pub fn refusal(field: &str, reason: &str) -> RefusedSetting {
    let mut reason = reason.replace(char::is_control, "?");
    reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
    let field = field.into();
    RefusedSetting { field, reason }
}

struct Checks<'a> {
    pinned: &'a [&'static str],
    shown: &'a mut BTreeMap<String, String>,
    refused: &'a mut Vec<RefusedSetting>,
}

impl Checks<'_> {
    /// `None`: the field is absent or was refused.
    fn field<G, T>(
        &mut self,
        name: &str,
        given: &Option<G>,
        check: impl FnOnce(&G) -> Checked<T>,
    ) -> Option<T> {
        let given = given.as_ref()?;
        let checked = match self.pinned.contains(&name) {
            true => Err(PINNED.into()),
            false => check(given),
        };
        let (value, text) = match checked {
            Ok((value, text)) => (Some(value), format!("{text}, from the service")),
            Err(reason) => {
                let refusal = refusal(name, &reason);
                let text = format!("refused: {}", refusal.reason);
                self.refused.push(refusal);
                (None, text)
            }
        };
        self.shown.insert(name.into(), text);
        value
    }
}

fn interval(given: &prost_types::Duration) -> Checked<Duration> {
    let interval = duration(Some(*given)).filter(|interval| INTERVALS.contains(interval));
    let interval = interval.ok_or("is not between 5 s and 1 h")?;
    Ok((interval, format!("{} s", interval.as_secs_f64())))
}

fn texts(name: &str, list: &[String]) -> Checked<Vec<String>> {
    if list.len() > LONGEST_LIST {
        return Err(format!("has more than {LONGEST_LIST} entries"));
    }
    for text in list {
        if !(1..=LONGEST_TEXT).contains(&text.len()) || text.contains(char::is_control) {
            return Err(format!(
                "{text:?} is not a text of 1 to {LONGEST_TEXT} bytes"
            ));
        }
        if name == "left_out" && !PARTS.contains(&text.as_str()) {
            return Err(format!("{text:?} is none of {}", PARTS.join(", ")));
        }
    }
    Ok((list.to_vec(), list.join(" ")))
}

/// A level whose end has passed is good, and without effect.
fn log(given: &LogLevel, now: Option<Timestamp>) -> Checked<Log> {
    let is_level = LEVELS.contains(&given.level.as_str());
    let level = given.level.parse().ok().filter(|_| is_level);
    let level = level.ok_or_else(|| format!("is none of {}", LEVELS.join(", ")))?;
    let until = system_time(given.until).and_then(|until| Timestamp::try_from(until).ok());
    let until = until.ok_or("has no end")?;
    let latest = now.and_then(|now| now.checked_add(LONGEST_LOG).ok());
    match latest.is_some_and(|latest| until > latest) {
        true => Err("ends more than 7 days from now".into()),
        false => Ok((Log { level, until }, format!("{level} until {until}"))),
    }
}

fn spool(bytes: &u64) -> Checked<u64> {
    match SPOOL_BYTES.contains(bytes) {
        true => Ok((*bytes, bytes.to_string())),
        false => Err("is not between 1 MiB and 4 GiB".into()),
    }
}

fn update(given: &UpdatePolicy, own: UpdateMode) -> Checked<Update> {
    let on = given.on;
    if on && own == UpdateMode::Off {
        return Err("update = \"off\" in the settings of this machine".into());
    }
    let hours: Hours = given
        .hours
        .parse()
        .map_err(|_| "has hours of another form")?;
    let text = if on { "on" } else { "off" };
    Ok((
        Update { on, hours },
        format!("{text} {hours}").trim_end().into(),
    ))
}

#[cfg(test)]
mod tests;
