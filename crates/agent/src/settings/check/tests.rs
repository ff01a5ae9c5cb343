use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::config::{Flags, PINNABLE};

fn config(variables: &[(&str, &str)]) -> Config {
    let address = ("SVC_AGENT_INGEST_ADDRESS", "a.example");
    let lookup = |name: &str| {
        let mut all = variables.iter().chain([&address]);
        let (_, value) = all.find(|(key, _)| *key == name)?;
        Some(value.into())
    };
    Config::read(&Flags::default(), &lookup).unwrap()
}

fn now() -> Timestamp {
    "2026-11-19T12:00:00Z".parse().unwrap()
}

fn at(text: &str) -> Option<prost_types::Timestamp> {
    let at: Timestamp = text.parse().unwrap();
    Some(SystemTime::from(at).into())
}

fn list(texts: &[&str]) -> Option<TextList> {
    let values = texts.iter().map(ToString::to_string).collect();
    Some(TextList { values })
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn log(level: &str, until: Option<prost_types::Timestamp>) -> Option<LogLevel> {
    let level = level.into();
    Some(LogLevel { level, until })
}

fn update(on: bool, hours: &str) -> Option<UpdatePolicy> {
    let hours = hours.into();
    Some(UpdatePolicy { on, hours })
}

/// Every field, and all of them good.
fn all() -> AgentSettings {
    AgentSettings {
        hash: vec![7; 32],
        interval: seconds(10),
        left_out: list(&["pressure", "disks"]),
        ignored_mounts: list(&["/mnt/*"]),
        ignored_file_systems: list(&["vfat"]),
        ignored_interfaces: list(&["veth*"]),
        log: log("debug", at("2026-11-20T12:00:00Z")),
        spool_bytes: Some(1 << 20),
        update: update(true, "mon-fri 08:00-16:00"),
    }
}

fn checked(given: &AgentSettings) -> (InForce, Vec<RefusedSetting>) {
    check(given, &config(&[]), Some(now()))
}

#[test]
fn good_settings_are_in_force_completely() {
    let (in_force, refused) = checked(&all());
    assert_eq!(refused, []);
    let shown = in_force.shown;
    assert_eq!(shown.len(), PINNABLE.len());
    assert!(
        PINNABLE.iter().all(|name| shown.contains_key(*name)),
        "{shown:?}"
    );
    assert_eq!(shown["interval"], "10 s, from the service");
    assert!(shown["log"].starts_with("debug until 2026-11-20T12:00:00Z"));
    assert!(shown["update"].starts_with("on mon-fri 08:00-16:00"));
    let nothing = checked(&AgentSettings::default());
    assert_eq!(nothing, (InForce::default(), Vec::new()));
}

#[test]
fn a_pinned_field_is_refused_and_absent_ones_are_not() {
    let config = config(&[("SVC_AGENT_PINNED", &PINNABLE.join(", "))]);
    let (in_force, refused) = check(&all(), &config, Some(now()));
    assert!(
        in_force
            .shown
            .values()
            .all(|text| text == "refused: pinned in agent.toml")
    );
    let shown = in_force.shown.clone();
    assert_eq!(
        in_force,
        InForce {
            shown,
            ..InForce::default()
        }
    );
    let mut names: Vec<&str> = refused.iter().map(|one| one.field.as_str()).collect();
    names.sort_by_key(|name| PINNABLE.iter().position(|field| field == name));
    assert_eq!(names, PINNABLE);
    assert!(
        refused
            .iter()
            .all(|one| one.reason == "pinned in agent.toml")
    );
    let (in_force, none) = check(&AgentSettings::default(), &config, Some(now()));
    assert_eq!((in_force.shown.len(), none), (PINNABLE.len(), vec![]));
}

#[test]
fn updates_that_are_off_on_this_machine_cannot_be_switched_on() {
    let config = config(&[("SVC_AGENT_UPDATE", "off")]);
    let (in_force, refused) = check(&all(), &config, Some(now()));
    assert_eq!((in_force.update, refused.len()), (None, 1));
    let off = AgentSettings {
        update: update(false, ""),
        ..all()
    };
    let (in_force, refused) = check(&off, &config, Some(now()));
    assert!(!in_force.allows_updates() && refused.is_empty());
}

#[test]
fn each_field_has_bounds_and_a_bad_one_keeps_the_rest() {
    let (long, many) = ("x".repeat(129), ["x"; 33]);
    let week = at("2026-11-26T12:00:01Z");
    let tomorrow = at("2026-11-20T12:00:00Z");
    type Change<'a> = &'a dyn Fn(&mut AgentSettings);
    let cases: [(&str, Change<'_>); 13] = [
        ("interval", &|all| all.interval = seconds(4)),
        ("interval", &|all| all.interval = seconds(3601)),
        ("interval", &|all| all.interval = seconds(-10)),
        ("left_out", &|all| all.left_out = list(&["cpu_percent"])),
        ("ignored_mounts", &|all| all.ignored_mounts = list(&[&long])),
        ("ignored_mounts", &|all| all.ignored_mounts = list(&[""])),
        ("ignored_file_systems", &|all| {
            all.ignored_file_systems = list(&many);
        }),
        ("ignored_interfaces", &|all| {
            all.ignored_interfaces = list(&["a\n"]);
        }),
        ("log", &|all| all.log = log("debug", None)),
        ("log", &|all| all.log = log("off", tomorrow)),
        ("log", &|all| all.log = log("info", week)),
        ("spool_bytes", &|all| all.spool_bytes = Some((1 << 20) - 1)),
        ("update", &|all| all.update = update(true, "mon 8-9")),
    ];
    let (good, _) = checked(&all());
    for (name, change) in cases {
        let mut given = all();
        change(&mut given);
        let (in_force, refused) = checked(&given);
        assert_eq!(refused.len(), 1, "{name}: {refused:?}");
        assert_eq!(refused[0].field, name);
        let mut shown = good.shown.clone();
        shown.insert(name.into(), format!("refused: {}", refused[0].reason));
        assert_eq!(in_force.shown, shown, "{name}");
    }
}

#[test]
fn a_time_that_is_not_known_refuses_no_end_of_a_log_level() {
    let far = AgentSettings {
        log: log("debug", at("2036-11-20T12:00:00Z")),
        ..all()
    };
    assert_eq!(checked(&far).1.len(), 1);
    assert!(check(&far, &config(&[]), None).1.is_empty());
}

#[test]
fn nothing_is_taken_without_a_hash_or_beyond_the_size() {
    assert_eq!(unusable(&all()), None);
    let with_hash = |hash: Vec<u8>| AgentSettings { hash, ..all() };
    assert!(unusable(&with_hash(vec![])).is_some());
    assert!(unusable(&with_hash(vec![1; 33])).is_some());
    let mut large = all();
    large.ignored_mounts = list(&["x".repeat(128).as_str(); 16]);
    assert!(unusable(&large).is_some());
}

#[test]
fn a_restart_is_allowed_in_its_hours_only() {
    let (in_force, _) = checked(&all());
    assert!(in_force.allows_restart(now()));
    assert!(!in_force.allows_restart("2026-11-19T17:00:00Z".parse().unwrap()));
    assert!(InForce::default().allows_restart(now()));
}

proptest! {
    #[test]
    fn whatever_is_sent_what_is_in_force_is_within_bounds(
        nanos in any::<i32>(), secs in any::<i64>(), bytes in any::<u64>(),
        texts in prop::collection::vec(any::<String>(), 1..40), level in "(debug|info|.{0,9})",
        until in any::<i64>(), hours in ".{1,30}",
    ) {
        let given = AgentSettings {
            hash: vec![1],
            interval: Some(prost_types::Duration { seconds: secs, nanos }),
            left_out: Some(TextList { values: texts.clone() }),
            ignored_mounts: Some(TextList { values: texts }),
            log: log(&level, Some(prost_types::Timestamp { seconds: until, nanos })),
            spool_bytes: Some(bytes),
            update: update(true, &hours),
            ..AgentSettings::default()
        };
        let (in_force, refused) = checked(&given);
        for one in &refused {
            prop_assert!(one.reason.len() <= 200 && !one.reason.contains(char::is_control));
        }
        prop_assert!(in_force.interval.is_none_or(|interval| INTERVALS.contains(&interval)));
        prop_assert!(in_force.spool_bytes.is_none_or(|bytes| SPOOL_BYTES.contains(&bytes)));
        prop_assert!(in_force.filter.mounts.len() <= LONGEST_LIST);
        prop_assert!(in_force.filter.parts.iter().all(|part| PARTS.contains(&part.as_str())));
        let latest = now().checked_add(LONGEST_LOG).unwrap();
        prop_assert!(in_force.log.is_none_or(|log| log.until <= latest));
        let shown = in_force.shown.values();
        let is_refused = |text: &&String| text.starts_with("refused: ");
        prop_assert_eq!(shown.filter(is_refused).count(), refused.len());
        prop_assert_eq!(in_force.shown.len(), 6, "each is in force or refused");
    }
}
