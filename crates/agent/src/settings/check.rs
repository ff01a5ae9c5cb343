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
    /// For people, by field.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let list = |list: &Vec<String>| (!list.is_empty()).then(|| list.join(", "));
        let seconds = |interval: Duration| format!("{} s", interval.as_secs_f64());
        let log = |Log { level, until }| format!("{level} until {until}");
        let update = |Update { on, hours }| match on {
            true => format!("on {hours}").trim_end().to_owned(),
            false => "off".into(),
        };
        let fields = [
            ("interval", self.interval.map(seconds)),
            ("left_out", list(&self.filter.parts)),
            ("ignored_mounts", list(&self.filter.mounts)),
            ("ignored_file_systems", list(&self.filter.file_systems)),
            ("ignored_interfaces", list(&self.filter.interfaces)),
            ("log", self.log.map(log)),
            (
                "spool_bytes",
                self.spool_bytes.map(|bytes| bytes.to_string()),
            ),
            ("update", self.update.map(update)),
        ];
        let fields = fields.into_iter();
        fields
            .filter_map(|(name, value)| Some((name.into(), value?)))
            .collect()
    }

    pub fn allows_updates(&self) -> bool {
        self.update.is_none_or(|update| update.on)
    }

    pub fn allows_restart(&self, now: Timestamp) -> bool {
        let is_time = |update: Update| update.on && update.hours.contain(now);
        self.update.is_none_or(is_time)
    }
}

type Checked<T> = Result<T, String>;

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
    let mut checks = Checks {
        pinned: &config.pinned,
        refused: Vec::new(),
    };
    let [parts, mounts, file_systems, interfaces] = [
        ("left_out", list(&given.left_out)),
        ("ignored_mounts", list(&given.ignored_mounts)),
        ("ignored_file_systems", list(&given.ignored_file_systems)),
        ("ignored_interfaces", list(&given.ignored_interfaces)),
    ]
    .map(|(name, list)| checks.field(name, list, |list| texts(name, list)));
    let own = config.update;
    let in_force = InForce {
        interval: checks.field("interval", given.interval.as_ref(), interval),
        filter: Filter {
            parts: parts.unwrap_or_default(),
            mounts: mounts.unwrap_or_default(),
            file_systems: file_systems.unwrap_or_default(),
            interfaces: interfaces.unwrap_or_default(),
        },
        log: checks.field("log", given.log.as_ref(), |given| log(given, now)),
        spool_bytes: checks.field("spool_bytes", given.spool_bytes.as_ref(), spool),
        update: checks.field("update", given.update.as_ref(), |given| update(given, own)),
    };
    (in_force, checks.refused)
}

pub fn refusal(field: &str, mut reason: String) -> RefusedSetting {
    reason = reason.replace(char::is_control, "?");
    reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
    let field = field.into();
    RefusedSetting { field, reason }
}

struct Checks<'a> {
    pinned: &'a [&'static str],
    refused: Vec<RefusedSetting>,
}

impl Checks<'_> {
    /// `None`: the field is absent or was refused.
    fn field<G: ?Sized, T>(
        &mut self,
        name: &str,
        given: Option<&G>,
        check: impl FnOnce(&G) -> Checked<T>,
    ) -> Option<T> {
        let given = given?;
        let checked = match self.pinned.contains(&name) {
            true => Err("pinned in agent.toml".into()),
            false => check(given),
        };
        let refused = |reason| self.refused.push(refusal(name, reason));
        checked.map_err(refused).ok()
    }
}

fn list(given: &Option<TextList>) -> Option<&[String]> {
    given.as_ref().map(|list| &*list.values)
}

fn interval(given: &prost_types::Duration) -> Checked<Duration> {
    let interval = duration(Some(*given)).filter(|interval| INTERVALS.contains(interval));
    interval.ok_or_else(|| "is not between 5 s and 1 h".into())
}

fn texts(name: &str, list: &[String]) -> Checked<Vec<String>> {
    if list.len() > LONGEST_LIST {
        return Err(format!("has more than {LONGEST_LIST} entries"));
    }
    let is_text = |text: &String| {
        (1..=LONGEST_TEXT).contains(&text.len()) && !text.contains(char::is_control)
    };
    if let Some(wrong) = list.iter().find(|text| !is_text(text)) {
        return Err(format!(
            "{wrong:?} is not a text of 1 to {LONGEST_TEXT} bytes"
        ));
    }
    let is_part = |text: &String| name != "left_out" || PARTS.contains(&text.as_str());
    match list.iter().find(|text| !is_part(text)) {
        Some(wrong) => Err(format!("{wrong:?} is none of {}", PARTS.join(", "))),
        None => Ok(list.to_vec()),
    }
}

/// A level whose end has passed is good, and without effect.
fn log(given: &LogLevel, now: Option<Timestamp>) -> Checked<Log> {
    let level = LEVELS.contains(&given.level.as_str());
    let level = level.then(|| given.level.parse().ok()).flatten();
    let level =
        level.ok_or_else(|| format!("{:?} is none of {}", given.level, LEVELS.join(", ")))?;
    let until = system_time(given.until).and_then(|until| Timestamp::try_from(until).ok());
    let until = until.ok_or("has no end")?;
    let latest = now.and_then(|now| now.checked_add(LONGEST_LOG).ok());
    match latest.is_some_and(|latest| until > latest) {
        true => Err("ends more than 7 days from now".into()),
        false => Ok(Log { level, until }),
    }
}

fn spool(bytes: &u64) -> Checked<u64> {
    let bytes = Some(*bytes).filter(|bytes| SPOOL_BYTES.contains(bytes));
    bytes.ok_or_else(|| "is not between 1 MiB and 4 GiB".into())
}

fn update(given: &UpdatePolicy, own: UpdateMode) -> Checked<Update> {
    if given.on && own == UpdateMode::Off {
        return Err("update = \"off\" in the settings of this machine".into());
    }
    if given.hours.len() > LONGEST_TEXT {
        return Err("its hours are too long".into());
    }
    let hours = given.hours.parse::<Hours>();
    let hours = hours.map_err(|error| error.to_string())?;
    let on = given.on;
    Ok(Update { on, hours })
}

#[cfg(test)]
mod tests;
