//! Settings of agents: what a rule sets, and what the rules come to. How people write and read them.
//!
//! The bounds are those of the SQL function `settings_problem` (`schema/75_settings.sql`), which is the rule.

use std::error::Error;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, from_value, to_value};
use tokio_postgres::types::{FromSql, Json, Type};

use super::rollout::Hours;

/// An absent field leaves the decision to rules of a lower priority, and at last to the agent's own configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSettings {
    /// Seconds.
    pub interval: Option<u32>,
    pub left_out: Option<Vec<String>>,
    pub ignored_mounts: Option<Vec<String>>,
    pub ignored_file_systems: Option<Vec<String>>,
    pub ignored_interfaces: Option<Vec<String>>,
    pub log: Option<LogSetting>,
    pub spool_bytes: Option<u64>,
    pub update: Option<UpdateSetting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSetting {
    pub level: String,
    /// Seconds since 1970.
    pub until: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateSetting {
    pub on: bool,
    /// As [`Hours`] are written.
    pub hours: String,
}

/// Why an agent does not take a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSetting {
    pub field: String,
    pub reason: String,
}

const MIB: u64 = 1 << 20;
/// Seconds. Agents refuse more, too.
const LONGEST_LOG: i64 = 7 * 24 * 3600;

impl AgentSettings {
    /// From what people have written: nothing for an absent field, `none` for an empty list.
    pub fn read<'a>(get: impl Fn(&str) -> &'a str, now: Timestamp) -> Result<Self, String> {
        let list = |name| match get(name) {
            "" => None,
            "none" => Some(Vec::new()),
            list => Some(list.split(',').map(|one| one.trim().into()).collect()),
        };
        let interval = match get("interval") {
            "" => None,
            text => Some(u32::try_from(seconds(text)?).map_err(|_| "the interval is too long")?),
        };
        let log = match (get("log"), get("log_for")) {
            ("", "") => None,
            ("", _) | (_, "") => return Err("a log level needs an end, and an end a level".into()),
            (level, text) => match seconds(text)? {
                after @ ..=LONGEST_LOG => Some(LogSetting {
                    level: level.into(),
                    until: now.as_second().saturating_add(after),
                }),
                _ => return Err("a log level ends within 7 days".into()),
            },
        };
        let update = match (get("update"), get("update_hours")) {
            ("", "") => None,
            (on @ ("on" | "off"), hours) => {
                let hours: Hours = hours.parse().map_err(|error| format!("{error}"))?;
                let (on, hours) = (on == "on", hours.to_string());
                Some(UpdateSetting { on, hours })
            }
            _ => return Err("updates are on or off, and hours need one of the two".into()),
        };
        Ok(Self {
            interval,
            left_out: list("left_out"),
            ignored_mounts: list("ignored_mounts"),
            ignored_file_systems: list("ignored_file_systems"),
            ignored_interfaces: list("ignored_interfaces"),
            log,
            spool_bytes: size(get("spool"))?,
            update,
        })
    }

    /// What [`AgentSettings::read`] reads as these.
    pub fn written(&self, name: &str, now: Timestamp) -> String {
        let log = self.log.as_ref();
        let log = log.filter(|log| log.until > now.as_second());
        match (name, &self.update) {
            ("log", _) => log.map(|log| log.level.clone()),
            ("log_for", _) => log.map(|log| format!("{}s", log.until - now.as_second())),
            ("update", Some(update)) => Some(if update.on { "on" } else { "off" }.into()),
            ("update_hours", Some(update)) => Some(update.hours.clone()),
            ("spool", _) => self.spool_bytes.map(|bytes| format!("{}MiB", bytes / MIB)),
            _ => {
                let mut fields = self.fields().into_iter();
                let found = fields.find(|(field, _)| *field == name);
                found.map(|(_, value)| value)
            }
        }
        .unwrap_or_default()
    }

    /// The fields that are set, by their names in the protocol, for people.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let list = |list: &Option<Vec<String>>| {
            let list = list.as_ref()?.join(", ");
            Some(if list.is_empty() { "none".into() } else { list })
        };
        let log = |log: &LogSetting| {
            let until = Timestamp::from_second(log.until).unwrap_or(Timestamp::MAX);
            format!("{} until {until}", log.level)
        };
        let update = |update: &UpdateSetting| match (update.on, update.hours.as_str()) {
            (false, _) => "off".into(),
            (true, "") => "on".into(),
            (true, hours) => format!("on, {hours}"),
        };
        let fields = [
            ("interval", self.interval.map(|after| format!("{after}s"))),
            ("left_out", list(&self.left_out)),
            ("ignored_mounts", list(&self.ignored_mounts)),
            ("ignored_file_systems", list(&self.ignored_file_systems)),
            ("ignored_interfaces", list(&self.ignored_interfaces)),
            ("log", self.log.as_ref().map(log)),
            (
                "spool_bytes",
                self.spool_bytes.map(|bytes| format!("{} MiB", bytes / MIB)),
            ),
            ("update", self.update.as_ref().map(update)),
        ];
        let set = fields.into_iter();
        set.filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// These settings with the fields of `newer` over them, and without those of `cleared`.
    pub fn changed(&self, newer: &Self, cleared: &[String]) -> serde_json::Result<Self> {
        let (mut all, newer) = (to_value(self)?, to_value(newer)?);
        if let (Value::Object(all), Value::Object(newer)) = (&mut all, newer) {
            all.extend(newer.into_iter().filter(|(_, value)| !value.is_null()));
            all.retain(|name, _| !cleared.contains(name));
        }
        from_value(all)
    }
}

fn seconds(text: &str) -> Result<i64, String> {
    let parsed = text.parse::<SignedDuration>();
    let parsed = parsed.map(|duration| duration.as_secs()).ok();
    let positive = parsed.filter(|seconds| *seconds > 0);
    positive.ok_or_else(|| format!("{text:?} is not a duration, such as 30s or 2h"))
}

fn size(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = || {
        let digits = text.trim_end_matches(|last: char| !last.is_ascii_digit());
        let unit = match text.get(digits.len()..)?.trim() {
            "MiB" => MIB,
            "GiB" => MIB << 10,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(unit)
    };
    let size = parsed().ok_or_else(|| format!("{text:?} is not a size, such as 64MiB"))?;
    Ok(Some(size))
}

/// A newer version may have written fields that this one does not know.
impl<'a> FromSql<'a> for AgentSettings {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Json::from_sql(ty, raw).map(|Json(settings)| settings)
    }

    fn accepts(ty: &Type) -> bool {
        <Json<Self> as FromSql>::accepts(ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn read(written: &[(&str, &'static str)]) -> Result<AgentSettings, String> {
        let get = |name: &str| {
            let found = written.iter().find(|(known, _)| *known == name);
            found.map_or("", |(_, value)| *value)
        };
        AgentSettings::read(get, NOW)
    }

    const ALL: [(&str, &str); 10] = [
        ("interval", "1m 30s"),
        ("left_out", "none"),
        ("ignored_mounts", "/mnt/*, /snap/*"),
        ("ignored_file_systems", "squashfs"),
        ("ignored_interfaces", "veth*"),
        ("log", "debug"),
        ("log_for", "2h"),
        ("spool", "1GiB"),
        ("update", "on"),
        ("update_hours", "Mon-Fri 08:00-16:00"),
    ];

    #[test]
    fn settings_are_read_as_they_are_written() {
        let all = read(&ALL).unwrap();
        assert_eq!((all.interval, all.spool_bytes), (Some(90), Some(1 << 30)));
        assert_eq!(all.left_out, Some(vec![]), "an empty list is a setting");
        assert_eq!(all.fields().len(), 8);
        let written: Vec<_> = ALL.map(|(name, _)| (name, all.written(name, NOW))).into();
        let get = |name: &str| {
            let found = written.iter().find(|(known, _)| *known == name);
            found.map_or("", |(_, value)| value.as_str())
        };
        assert_eq!(AgentSettings::read(get, NOW), Ok(all));
        assert_eq!(read(&[]), Ok(AgentSettings::default()));
        for wrong in [
            ("interval", "soon"),
            ("interval", "-5s"),
            ("log", "debug"),
            ("log_for", "2h"),
            ("spool", "64"),
            ("spool", "99999999999999GiB"),
            ("update", "yes"),
            ("update_hours", "mon-fri 08:00-16:00"),
        ] {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_change_sets_and_clears_fields_and_leaves_the_others() {
        let all = read(&ALL).unwrap();
        let newer = read(&[("interval", "10s")]).unwrap();
        let changed = all.changed(&newer, &["log".into()]).unwrap();
        assert_eq!((changed.interval, &changed.log), (Some(10), &None));
        assert_eq!(changed.fields().len(), 7);
    }
}
