//! Settings of agents from the service's side, through its port: who is sent what, how often, and how long a stream may be silent.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use svc_ingest::config::Timing;
use svc_proto::{
    ServerMessage,
    v1::{AgentSettings, Hello, RefusedSetting, SettingsState},
};
use svc_testkit::{ActiveAgent, HeartbeatCall, Site, assert_contains, sample, times_offline};
use tokio::time::sleep;

use crate::commands::{failure_of, json, output_of};

fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
}

fn runs(hash: &[u8]) -> SettingsState {
    SettingsState {
        running_hash: hash.to_vec(),
        received_hash: hash.to_vec(),
        refused: vec![],
    }
}

/// Opens the stream of an agent that takes settings.
async fn open(agent: &ActiveAgent, state: SettingsState) -> Result<HeartbeatCall> {
    let hello = Hello {
        settings: Some(state),
        ..agent.agent.hello()
    };
    let opened = agent.agent.try_heartbeat(agent.address, &agent.jwt, hello);
    match opened.await? {
        Ok(call) => Ok(call),
        Err(refused) => bail!("{refused:?}"),
    }
}

/// The next settings of its own.
async fn next(call: &mut HeartbeatCall) -> Result<AgentSettings> {
    let settings = call.next_settings().await?;
    ensure!(settings.heartbeat_interval.is_some() && settings.release.is_some());
    let Some(own) = settings.agent else {
        bail!("no settings of its own: {settings:?}");
    };
    ensure!(own.hash.len() == 32, "{own:?}");
    Ok(own)
}

/// For several passes; nothing but an acknowledgement may come.
async fn is_sent_nothing(call: &mut HeartbeatCall, seq: u64) -> Result<()> {
    sleep(Duration::from_secs(1)).await;
    call.report(vec![sample(seq)], vec![]).await?;
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Ack(ack))) if ack.up_to_seq == seq => return Ok(()),
            Ok(Some(ServerMessage::Settings(settings))) => bail!("{settings:?}"),
            Ok(Some(_)) => {}
            ended => bail!("{ended:?}"),
        }
    }
}

async fn rule(site: &Site, arguments: &str) -> Result<String> {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    output_of(site, &[&["settings"], &arguments[..]].concat()).await
}

#[tokio::test]
async fn settings_reach_only_agents_that_a_selector_names_and_that_take_them_and_once() -> Result<()>
{
    let site = Site::new().await?;
    let (instance, named) = site.instance().timing(quick).with_agent(&site).await?;
    let other = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let old = ActiveAgent::new(&site, instance.grpc, 3).await?;
    for host in ["web-1", "web-3"] {
        output_of(&site, &["host", "label", host, "site=ams"]).await?;
    }
    let (mut call, mut other, mut old) = (
        open(&named, SettingsState::default()).await?,
        open(&other, SettingsState::default()).await?,
        old.heartbeat().await?,
    );
    let known = "SELECT count(*) FROM agent_settings";
    site.becomes(known, "2").await?;
    rule(
        &site,
        "add --selector site=ams --interval 20s --ignore-mount /mnt/* --ignore-mount /snap/* --log debug --log-until 2h",
    )
    .await?;
    let own = next(&mut call).await?;
    assert_eq!(own.interval.map(|interval| interval.seconds), Some(20));
    let mounts = own.ignored_mounts.clone().map(|list| list.values);
    assert_eq!(mounts, Some(vec!["/mnt/*".into(), "/snap/*".into()]));
    assert_eq!(
        own.log.as_ref().map(|log| log.level.as_str()),
        Some("debug")
    );
    assert!(own.update.is_none() && own.spool_bytes.is_none());
    is_sent_nothing(&mut call, 1).await?;
    is_sent_nothing(&mut other, 1).await?;
    is_sent_nothing(&mut old, 1).await?;

    // It refuses a field, and is not sent it again.
    let refusal = RefusedSetting {
        field: "log".into(),
        reason: "agent.toml sets it".into(),
    };
    let state = SettingsState {
        refused: vec![refusal],
        ..runs(&own.hash)
    };
    call.says_settings(state).await?;
    is_sent_nothing(&mut call, 2).await?;
    let shown = output_of(&site, &["settings", "show", "web-1"]).await?;
    for part in [
        "20s (rule 1)",
        "/mnt/*, /snap/*",
        "runs them, but for",
        "agent.toml sets it",
    ] {
        assert_contains(&shown, part);
    }
    let none = output_of(&site, &["settings", "show", "web-3"]).await?;
    assert_contains(&none, "takes no settings");

    // A change is pushed; what was said before is not forgotten by a new stream.
    rule(&site, "change 1 --interval 25s --clear log --reason quiet").await?;
    let changed = next(&mut call).await?;
    assert!(changed.log.is_none() && changed.hash != own.hash);
    assert_eq!(changed.ignored_mounts, own.ignored_mounts);
    drop(call);
    let mut call = open(&named, runs(&changed.hash)).await?;
    is_sent_nothing(&mut call, 3).await?;
    drop(call);
    // A restored snapshot says what it had then.
    let mut call = open(&named, runs(&own.hash)).await?;
    assert_eq!(next(&mut call).await?, changed);
    call.says_settings(runs(&changed.hash)).await?;

    rule(&site, "remove 1 --reason over").await?;
    let empty = next(&mut call).await?;
    let nothing = AgentSettings {
        hash: empty.hash.clone(),
        ..AgentSettings::default()
    };
    assert_eq!(empty, nothing);
    call.says_settings(runs(&empty.hash)).await?;
    is_sent_nothing(&mut call, 4).await
}

#[tokio::test]
async fn a_stream_may_be_silent_for_as_long_as_the_rule_of_its_agent_allows() -> Result<()> {
    let site = Site::new().await?;
    let intervals = |timing: &mut Timing| {
        quick(timing);
        timing.heartbeat_interval = Duration::from_secs(1);
        timing.silence_margin = Duration::from_millis(500);
    };
    let (instance, slow) = site.instance().timing(intervals).with_agent(&site).await?;
    let usual = ActiveAgent::new(&site, instance.grpc, 2).await?;
    output_of(&site, &["host", "label", "web-1", "site=ams"]).await?;
    rule(&site, "add --selector site=ams --interval 5s").await?;
    let mut call = open(&slow, SettingsState::default()).await?;
    let own = next(&mut call).await?;
    call.says_settings(runs(&own.hash)).await?;
    sleep(Duration::from_secs(5)).await;
    call.report_acked(1..=1).await?;
    drop(call);
    // Nothing is sent to it any more, and its interval still counts.
    let mut call = open(&slow, runs(&own.hash)).await?;
    sleep(Duration::from_secs(5)).await;
    call.report_acked(2..=2).await?;
    // Until it says that it has gone back, the longer interval counts.
    rule(&site, "remove 1").await?;
    next(&mut call).await?;
    sleep(Duration::from_secs(4)).await;
    call.report_acked(3..=3).await?;
    let offline = times_offline(&site).await?;

    let mut silent = usual.heartbeat().await?;
    sleep(Duration::from_secs(4)).await;
    let ended = silent.receive().await?;
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    assert!(times_offline(&site).await? <= offline + 1);
    Ok(())
}

#[tokio::test]
async fn a_command_says_what_a_rule_costs_and_refuses_what_the_instances_cannot_take() -> Result<()>
{
    let site = Site::new().await?;
    let (_instance, _agent) = site.instance().with_agent(&site).await?;
    let load = "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at, load)
                SELECT gen_random_uuid(), kid, 'busy', version, 'a', 'b', now() + interval '1 hour',
                       '{\"cores\": 1, \"cores_used\": 1000, \"heartbeat_seconds\": 30}' FROM ingest_instances LIMIT 1";
    site.psql(load).await?;
    let fast = ["settings", "add", "--all", "--interval", "5s"];
    let shown = output_of(&site, &["settings", "preview", "--all", "--interval", "5s"]).await?;
    assert_contains(
        &shown,
        "1 hosts (now 0): +0.2 reports a second; the instances have room for 0.0",
    );
    let refused = failure_of(&site, 1, &fast).await?;
    assert_contains(
        &refused,
        "+0.2 reports a second; the instances have room for 0.0",
    );
    site.expect("SELECT count(*) FROM settings_rules", "0")
        .await?;
    for wrong in [
        &["settings", "add", "--all", "--interval", "soon"][..],
        &["settings", "add", "--all", "--log", "debug"],
        &["settings", "add", "--interval", "30s"],
    ] {
        assert!(output_of(&site, wrong).await.is_err(), "{wrong:?}");
    }
    let out_of_bounds = ["settings", "add", "--all", "--interval", "1s"];
    assert_contains(&failure_of(&site, 1, &out_of_bounds).await?, "5 s to 1 h");
    let made = json(&site, &[&fast[..], &["--force"]].concat()).await?;
    assert_eq!(made["applied"], true);
    let rules = json(&site, &["settings", "list"]).await?;
    assert_eq!(rules[0]["settings"]["interval"], 5);
    let missing = failure_of(&site, 1, &["settings", "remove", "99"]).await?;
    assert_contains(&missing, "there is no rule 99");
    Ok(())
}
