//! Settings by label: which rule decides, whom a share reaches, what a rule can set, and what a change costs.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use svc_store::{
    AgentId, AgentSettings, Apply, InstanceLoad, LogSetting, NewRule, RefusedSetting, RuleChange,
    SettingsCost, SettingsReport,
};

use crate::{fixtures::*, leases::claimed, support::*};

fn rule(selector: &str, priority: i32, share: i32, patch: AgentSettings) -> Result<NewRule> {
    Ok(NewRule {
        priority,
        selector: selector.parse()?,
        patch,
        share,
    })
}

fn every(seconds: u32) -> AgentSettings {
    AgentSettings {
        interval: Some(seconds),
        ..AgentSettings::default()
    }
}

async fn make(store: &TestStore, change: RuleChange) -> Result<SettingsCost> {
    let cost = store.settings_change(&change, Apply::IfRoom, "ann", "why");
    Ok(cost.await?)
}

async fn add(
    store: &TestStore,
    selector: &str,
    priority: i32,
    patch: AgentSettings,
) -> Result<i64> {
    let rule = rule(selector, priority, 100, patch)?;
    Ok(make(store, RuleChange::Add(rule)).await?.rule)
}

/// So many agents that have the label env=prod and take settings.
async fn fleet(count: usize) -> Result<(TestStore, Vec<AgentId>)> {
    let store = migrated().await?;
    let agents = TestAgent::many(&store, count).await?;
    store
        .sql("UPDATE hosts SET labels = '{\"env\": \"prod\"}'")
        .await?;
    let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
    say(&store, &ids, &[], &[]).await?;
    Ok((store, ids))
}

async fn say(store: &TestStore, ids: &[AgentId], running: &[u8], received: &[u8]) -> Result<()> {
    let report = SettingsReport {
        running: running.into(),
        received: received.into(),
        refused: vec![],
    };
    let reports: Vec<_> = ids.iter().map(|id| (*id, report.clone())).collect();
    Ok(store.settings_report(&reports).await?)
}

#[tokio::test]
async fn the_highest_rule_decides_about_each_field_and_of_equal_ones_the_newest() -> Result<()> {
    let (store, ids) = fleet(1).await?;
    let both = AgentSettings {
        spool_bytes: Some(1 << 20),
        ignored_mounts: Some(vec!["/mnt/*".into()]),
        ..every(60)
    };
    let high = add(&store, "env=prod", 200, every(10)).await?;
    let low = add(&store, "", 100, both).await?;
    let newer = AgentSettings {
        ignored_mounts: Some(vec![]),
        ..AgentSettings::default()
    };
    let newer = add(&store, "env=prod", 100, newer).await?;
    add(&store, "env=test", 300, every(5)).await?;
    let over = AgentSettings {
        log: Some(LogSetting {
            level: "debug".into(),
            until: 1,
        }),
        ..AgentSettings::default()
    };
    add(&store, "", 300, over).await?;
    let view = store.settings_of(ids[0]).await?.context("the agent")?;
    let expected = [
        ("interval", "10s".to_owned(), high),
        ("ignored_mounts", "none".to_owned(), newer),
        ("spool_bytes", "1 MiB".to_owned(), low),
    ];
    assert_eq!(view.fields(), expected, "an ended log level sets nothing");
    assert_eq!(view.state(), "runs others, and has not received these");
    let order = store.settings_rules().await?;
    let order: Vec<i64> = order.iter().map(|rule| rule.id).collect();
    assert_eq!(order[..3], [low, newer, high]);
    let events = "SELECT string_agg(DISTINCT concat_ws(' ', kind, actor, split_part(detail, ';', 1)), ', ') FROM people_events";
    assert_eq!(store.sql(events).await?, "settings added ann why");
    Ok(())
}

#[tokio::test]
async fn settings_are_wanted_until_received_and_have_one_hash_however_they_came_to_be() -> Result<()>
{
    let (store, ids) = fleet(2).await?;
    let none = store.settings_wanted(&ids).await?;
    assert!(none.iter().all(|one| !one.due && one.runs), "{none:?}");
    let first = add(&store, "env=prod", 100, every(10)).await?;
    let marked = store.settings_mark().await?;
    let wanted = store.settings_wanted(&ids).await?;
    assert!(wanted.iter().all(|one| one.due && !one.runs));
    let hash = wanted[0].hash.clone();
    assert_eq!((hash.len(), &hash), (32, &wanted[1].hash));
    let refused = SettingsReport {
        running: vec![],
        received: hash.clone(),
        refused: vec![RefusedSetting {
            field: "interval".into(),
            reason: "agent.toml sets it".into(),
        }],
    };
    store.settings_report(&[(ids[0], refused)]).await?;
    let [refuser, other] = &store.settings_wanted(&ids).await?[..] else {
        anyhow::bail!("two agents");
    };
    let (refuser, other) = match refuser.agent_id == ids[0] {
        true => (refuser, other),
        false => (other, refuser),
    };
    assert!(!refuser.due && refuser.refuses_interval, "it is no loop");
    assert!(other.due && !other.refuses_interval);

    // The same settings by other rules are the same settings.
    make(&store, RuleChange::Remove(first)).await?;
    assert_ne!(store.settings_mark().await?, marked);
    let empty = store.settings_wanted(&ids[..1]).await?;
    assert!(empty[0].due, "it has settings, and is to have none");
    assert_eq!(empty[0].settings, AgentSettings::default());
    add(&store, "", 7, every(3600)).await?;
    add(&store, "env=prod", 8, every(10)).await?;
    assert_eq!(store.settings_wanted(&ids[..1]).await?[0].hash, hash);
    say(&store, &ids, &hash, &hash).await?;
    let wanted = store.settings_wanted(&ids).await?;
    assert!(wanted.iter().all(|one| one.runs && !one.due));
    let view = store.settings_of(ids[0]).await?.context("the agent")?;
    assert_eq!(view.state(), "runs them");
    Ok(())
}

#[tokio::test]
async fn a_larger_share_has_all_hosts_of_a_smaller_one() -> Result<()> {
    let (store, ids) = fleet(400).await?;
    let ten = rule("env=prod", 100, 10, every(10))?;
    let made = make(&store, RuleChange::Add(ten.clone())).await?;
    let members = async || -> Result<BTreeSet<AgentId>> {
        let wanted = store.settings_wanted(&ids).await?.into_iter();
        let ruled = wanted.filter(|one| one.settings.interval.is_some());
        Ok(ruled.map(|one| one.agent_id).collect())
    };
    let mut before = members().await?;
    assert_eq!(before.len() as i64, made.hosts);
    assert!((15..=70).contains(&before.len()), "{}", before.len());
    for share in [11, 30, 75, 100] {
        let wider = NewRule {
            share,
            ..ten.clone()
        };
        make(&store, RuleChange::Change(made.rule, wider)).await?;
        let now = members().await?;
        assert!(now.is_superset(&before), "{share} %");
        before = now;
    }
    assert_eq!(before.len(), ids.len());
    Ok(())
}

#[tokio::test]
async fn a_rule_sets_known_fields_within_their_bounds_and_nothing_else() -> Result<()> {
    let store = migrated().await?;
    let problem = async |patch: &str| {
        let sql = format!("SELECT settings_problem('{patch}') IS NULL");
        store.sql(&sql).await
    };
    let long = format!(r#"{{"ignored_mounts": ["{}"]}}"#, "x".repeat(400));
    for wrong in [
        "{}",
        "[]",
        "null",
        r#"{"interval": 4}"#,
        r#"{"interval": 3601}"#,
        r#"{"interval": "10"}"#,
        r#"{"interval": 10.5}"#,
        r#"{"interval": null}"#,
        r#"{"left_out": "pressure"}"#,
        r#"{"left_out": ["presure"]}"#,
        r#"{"ignored_mounts": "/mnt"}"#,
        r#"{"ignored_mounts": [""]}"#,
        r#"{"ignored_mounts": ["a,b"]}"#,
        r#"{"ignored_mounts": [1]}"#,
        r#"{"ignored_mounts": ["a\u0007"]}"#,
        &long,
        r#"{"log": {"level": "debug"}}"#,
        r#"{"log": {"level": "loud", "until": 1800000000}}"#,
        r#"{"log": {"level": "debug", "until": 1800000000, "to": "/etc"}}"#,
        r#"{"spool_bytes": 1}"#,
        r#"{"update": {"on": true}}"#,
        r#"{"update": {"on": "yes", "hours": ""}}"#,
        r#"{"update": {"on": true, "hours": "never"}}"#,
        r#"{"service_address": "evil:443"}"#,
        r#"{"interval": 10, "trust_anchor": ""}"#,
    ] {
        assert_eq!(
            problem(wrong).await.context(wrong.to_owned())?,
            "f",
            "{wrong}"
        );
    }
    for right in [
        r#"{"interval": 5}"#,
        r#"{"interval": 3600, "left_out": [], "ignored_interfaces": ["veth*", "br-*"]}"#,
        r#"{"log": {"level": "trace", "until": 1800000000}}"#,
        r#"{"spool_bytes": 1048576, "update": {"on": false, "hours": ""}}"#,
        r#"{"update": {"on": true, "hours": "mon-fri 08:00-16:00"}}"#,
    ] {
        assert_eq!(problem(right).await?, "t", "{right}");
    }
    let added = store.sql("INSERT INTO settings_rules (id, priority, selector, patch, share, created_by, changed_by) VALUES (9, 1, '{}', '{\"key\": 1}', 1, '', '')");
    assert_eq!(sqlstate(&added.await.unwrap_err())?, "23514");
    Ok(())
}

#[tokio::test]
async fn a_shorter_interval_for_which_there_is_no_room_is_refused_with_the_figures() -> Result<()> {
    let (store, _) = fleet(300).await?;
    let fast = RuleChange::Add(rule("env=prod", 100, 100, every(5))?);
    let unknown = store.settings_change(&fast, Apply::Preview, "ann", "");
    let unknown = unknown.await?;
    assert!(unknown.fits() && !unknown.applied, "{unknown}");
    assert_eq!((unknown.hosts, unknown.room), (300, None));
    let instance = claimed(&store, "k1").await?;
    // 0.70 of 0.03 cores are planned with, 0.02 are in use: there is room for 2.8 reports a second.
    let load = InstanceLoad {
        agents: 300,
        cores: 0.03,
        cores_used: 0.02,
        heartbeat_seconds: 30.0,
        ..InstanceLoad::default()
    };
    let ttl = Duration::from_secs(600);
    store.lease_renew(instance.id, ttl, &load, ttl).await?;
    let refused = store
        .settings_change(&fast, Apply::IfRoom, "ann", "")
        .await?;
    let shown = refused.to_string();
    assert_eq!(
        shown,
        "300 hosts (now 0): +50.0 reports a second; the instances have room for 2.8"
    );
    let rules = "SELECT count(*) FROM settings_rules";
    let events = "SELECT count(*) FROM people_events";
    assert!(!refused.applied && store.sql(rules).await? == "0");
    assert_eq!(store.sql(events).await?, "0", "nothing happened");
    let slower = RuleChange::Add(rule("env=prod", 100, 100, every(60))?);
    let slower = make(&store, slower).await?;
    assert!(slower.applied && slower.reports < 0.0, "{slower}");
    let remove = RuleChange::Remove(slower.rule);
    let removed = store.settings_change(&remove, Apply::Forced, "ann", "");
    assert!(removed.await?.applied);
    let forced = store.settings_change(&fast, Apply::Forced, "ann", "");
    assert!(forced.await?.applied);
    assert_eq!(store.sql(rules).await?, "1");
    Ok(())
}
