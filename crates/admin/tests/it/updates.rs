//! Updates of agents from the service's side, through its port: who is offered a release, how a rollout goes on and halts, and
//! the silence that an agent announces.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use svc_ingest::config::Timing;
use svc_proto::{
    ServerMessage,
    v1::{Hello, UpdateState, UpdateStep},
};
use svc_release::{Binary, SecretKey, Update};
use svc_testkit::{
    ActiveAgent, HeartbeatCall, Site, assert_contains, metric_becomes, sample, times_offline,
};

use crate::commands::{json, output_of};

/// A rollout takes days; here each of its waits is a fraction of a second.
fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
    timing.rollouts = Duration::from_millis(300);
    timing.fleet_gauges = Duration::from_millis(500);
    timing.dark_after = Duration::from_secs(1);
}

/// Signs a release and adds it with the command. Returns the manifest.
async fn release(site: &Site, serial: u64, version: &str) -> Result<String> {
    let key = SecretKey::generate()?;
    let binary = Binary {
        size: 7,
        sha256: "0f".repeat(32),
    };
    let update = Update {
        product: "svc-agent".into(),
        version: version.parse()?,
        serial,
        minimum: None,
        notes: None,
        platforms: [("linux/x86_64".to_owned(), binary)].into(),
    };
    let text = update.to_text()?;
    let (file, keys) = (site.path("svc-agent.json"), site.path("release.pub"));
    fs::write(&file, &text)?;
    fs::write(site.path("svc-agent.json.sig"), key.sign(text.as_bytes())?)?;
    fs::write(&keys, key.public_key()?.to_pem())?;
    let (file, keys) = (file.display().to_string(), keys.display().to_string());
    output_of(site, &["release", "add", &file, "--keys", &keys]).await?;
    Ok(text)
}

/// Starts the rollout of a release without a soak.
async fn start(site: &Site, selector: &str, stages: &str) -> Result<()> {
    let hosts = match selector {
        "" => vec!["--all"],
        selector => vec!["--selector", selector],
    };
    let rest = ["--stages", stages, "--soak", "0s"];
    let arguments = [&["rollout", "start", "--serial", "1"], &hosts[..], &rest].concat();
    output_of(site, &arguments).await.map(drop)
}

fn state(step: UpdateStep, serial: u64) -> UpdateState {
    UpdateState {
        step: step.into(),
        serial,
        platform: "linux/x86_64".into(),
        ..UpdateState::default()
    }
}

fn hello(agent: &ActiveAgent, update: UpdateState) -> Hello {
    Hello {
        update: Some(update),
        ..agent.agent.hello()
    }
}

/// Opens the stream of an agent that updates itself.
async fn updating(agent: &ActiveAgent) -> Result<HeartbeatCall> {
    open(agent, hello(agent, state(UpdateStep::Unspecified, 0))).await
}

async fn open(agent: &ActiveAgent, hello: Hello) -> Result<HeartbeatCall> {
    let opened = agent.agent.try_heartbeat(agent.address, &agent.jwt, hello);
    match opened.await? {
        Ok(call) => Ok(call),
        Err(refused) => bail!("{refused:?}"),
    }
}

/// So many agents with their streams, and the one of them that was offered a release first, taken out.
struct Fleet(Vec<(ActiveAgent, HeartbeatCall)>);

impl Fleet {
    async fn new(site: &Site, instance: &svc_testkit::Instance, count: u32) -> Result<Self> {
        let mut fleet = Vec::new();
        for number in 1..=count {
            let agent = ActiveAgent::new(site, instance.grpc, number).await?;
            let call = updating(&agent).await?;
            fleet.push((agent, call));
        }
        let known = "SELECT count(*) FROM agent_updates";
        site.becomes(known, &count.to_string()).await?;
        Ok(Self(fleet))
    }

    async fn canary(&mut self, site: &Site) -> Result<(ActiveAgent, HeartbeatCall)> {
        site.becomes(OFFERED, "1").await?;
        let id = "SELECT agent_id FROM agent_updates WHERE offered_serial = 1";
        let id = site.psql(id).await?;
        let at = self.0.iter().position(|(agent, _)| agent.id == id);
        let (agent, mut call) = self.0.remove(at.context("an agent of the fleet")?);
        call.next_offer().await?;
        Ok((agent, call))
    }
}

const OFFERED: &str = "SELECT count(*) FROM agent_updates WHERE offered_serial = 1";
const STATE: &str = "SELECT state FROM rollouts WHERE serial = 1";

/// Reports a sample; nothing but its acknowledgement may come.
async fn is_offered_nothing(call: &mut HeartbeatCall) -> Result<()> {
    call.report(vec![sample(1)], vec![]).await?;
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Ack(ack))) if ack.up_to_seq == 1 => return Ok(()),
            Ok(Some(ServerMessage::Offer(offer))) => bail!("{offer:?}"),
            Ok(Some(_)) => {}
            ended => bail!("{ended:?}"),
        }
    }
}

#[tokio::test]
async fn an_offer_reaches_only_agents_that_a_selector_names_and_that_update_themselves()
-> Result<()> {
    let site = Site::new().await?;
    let (instance, named) = site.instance().timing(quick).with_agent(&site).await?;
    let other = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let old = ActiveAgent::new(&site, instance.grpc, 3).await?;
    for host in ["web-1", "web-3"] {
        output_of(&site, &["host", "label", host, "site=ams"]).await?;
    }
    let (mut call, mut other, mut old) = (
        updating(&named).await?,
        updating(&other).await?,
        old.heartbeat().await?,
    );
    let manifest = release(&site, 1, "1.1.0").await?;
    start(&site, "site=ams", "100%").await?;
    let offer = call.next_offer().await?;
    assert_eq!(offer.manifest, manifest.as_bytes());
    ensure!(offer.signature.len() == 64 && !offer.download_base_url.ends_with('/'));
    is_offered_nothing(&mut other).await?;
    is_offered_nothing(&mut old).await?;
    site.expect(OFFERED, "1").await?;
    site.expect("SELECT count(*) FROM agent_updates", "2")
        .await?;

    // An agent that comes back before it is done is offered the release again.
    drop(call);
    let mut call = updating(&named).await?;
    call.next_offer().await?;
    call.says(state(UpdateStep::Approved, 1)).await?;
    site.becomes(STATE, "done").await?;
    let shown = output_of(&site, &["rollout", "show", "1"]).await?;
    assert_contains(&shown, "approved");
    assert_contains(
        &output_of(&site, &["agent", "show", &named.id]).await?,
        "approved since",
    );
    let events = "SELECT string_agg(kind || ' by ' || actor, ', ' ORDER BY id) FROM rollout_events";
    let expected = "release added by ann, rollout started by ann, rollout done by svc-ingest";
    site.expect(events, expected).await
}

#[tokio::test]
async fn stages_advance_by_approvals_and_people_pause_resume_and_skip() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    let mut fleet = Fleet::new(&site, &instance, 4).await?;
    release(&site, 1, "1.1.0").await?;
    start(&site, "env=test", "1,100%").await?;
    let (_, canary) = fleet.canary(&site).await?;
    output_of(&site, &["rollout", "pause", "1", "--reason", "lunch"]).await?;
    let (left_out, _) = &fleet.0[0];
    let name = left_out.agent.host.hostname.clone();
    output_of(&site, &["rollout", "skip", "1", &name]).await?;
    canary.says(state(UpdateStep::Approved, 1)).await?;
    let approved = "SELECT count(*) FROM agent_updates WHERE serial = 1 AND step = 'approved'";
    site.becomes(approved, "1").await?;
    let paused = &json(&site, &["rollout", "list"]).await?[0];
    assert_eq!(
        (&paused["state"], &paused["reason"]),
        (&"paused".into(), &"lunch".into())
    );
    site.expect(OFFERED, "1").await?;
    output_of(&site, &["rollout", "resume", "1"]).await?;
    for (_, call) in &mut fleet.0[1..] {
        call.next_offer().await?;
        call.says(state(UpdateStep::Downloading, 1)).await?;
        call.says(state(UpdateStep::Approved, 1)).await?;
    }
    site.becomes(STATE, "done").await?;
    is_offered_nothing(&mut fleet.0[0].1).await?;
    let events = "SELECT string_agg(kind, ', ' ORDER BY id) FROM rollout_events";
    let expected = "release added, rollout started, rollout paused, host skipped, rollout resumed, rollout advanced, rollout done";
    site.expect(events, expected).await
}

#[tokio::test]
async fn a_canary_that_goes_dark_halts_its_rollout_and_the_release_is_taken_back() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    let mut fleet = Fleet::new(&site, &instance, 3).await?;
    release(&site, 1, "1.1.0").await?;
    start(&site, "", "1,100%").await?;
    let (agent, canary) = fleet.canary(&site).await?;
    canary.says(state(UpdateStep::Trying, 1)).await?;
    let trying = "SELECT count(*) FROM agent_updates WHERE step = 'trying'";
    site.becomes(trying, "1").await?;
    drop(canary);
    site.becomes(STATE, "halted").await?;
    metric_becomes(instance.http, "rollouts_halted", |halted| halted == 1.0).await?;
    let shown = output_of(&site, &["rollout", "show", "1"]).await?;
    assert_contains(&shown, "1 of 1 agents went offline after the offer");
    site.expect(OFFERED, "1").await?;

    release(&site, 2, "1.0.0").await?;
    output_of(&site, &["rollout", "back", "1", "--to", "2"]).await?;
    let mut hello = hello(&agent, state(UpdateStep::Approved, 1));
    hello.agent.get_or_insert_default().version = "1.1.0".into();
    let mut canary = open(&agent, hello).await?;
    canary.next_offer().await?;
    for (_, call) in &mut fleet.0 {
        is_offered_nothing(call).await?;
    }
    canary.says(state(UpdateStep::Approved, 2)).await?;
    let states = "SELECT string_agg(state, ' ' ORDER BY serial) FROM rollouts";
    site.becomes(states, "paused done").await?;
    metric_becomes(instance.http, "rollouts_halted", |halted| halted == 0.0).await
}

#[tokio::test]
async fn a_canary_that_refuses_halts_its_rollout_with_its_reason_and_its_log() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    let mut fleet = Fleet::new(&site, &instance, 2).await?;
    release(&site, 1, "1.1.0").await?;
    start(&site, "", "1,100%").await?;
    let (agent, canary) = fleet.canary(&site).await?;
    drop(canary);
    let refused = UpdateState {
        reason: "it exited with code 101".into(),
        log_tail: "one\nthread main panicked\u{1b}[31m".into(),
        ..state(UpdateStep::Refused, 1)
    };
    let mut canary = open(&agent, hello(&agent, refused)).await?;
    site.becomes(STATE, "halted").await?;
    is_offered_nothing(&mut canary).await?;
    let shown = output_of(&site, &["rollout", "show", "1"]).await?;
    for part in [
        "it exited with code 101",
        "\n  thread main panicked[31m",
        "1 of 1 agents refused",
    ] {
        assert_contains(&shown, part);
    }
    site.expect(OFFERED, "1").await
}

#[tokio::test]
async fn a_restart_for_an_update_is_announced_and_counts_as_offline_only_when_its_time_is_over()
-> Result<()> {
    let site = Site::new().await?;
    let (_instance, agent) = site.instance().timing(quick).with_agent(&site).await?;
    updating(&agent).await?.goodbye_for(3600).await?;
    let updating_now = "SELECT presence || ' ' || cause || ' ' || (online_until <= now() + interval '15 minutes') FROM agent_state";
    site.becomes(updating_now, "online updating true").await?;
    let hosts = json(&site, &["host", "list"]).await?;
    assert_eq!(hosts[0]["presence"], "updating");
    assert_contains(&output_of(&site, &["agent", "list"]).await?, "updating");
    assert_eq!(times_offline(&site).await?, 0);

    updating(&agent).await?.goodbye_for(1).await?;
    let over = "SELECT presence || ' ' || cause FROM agent_state";
    site.becomes(over, "offline lost").await?;
    assert_eq!(times_offline(&site).await?, 1);
    updating(&agent).await?.goodbye().await?;
    site.becomes(over, "offline goodbye").await
}

#[tokio::test]
async fn two_instances_offer_to_their_own_agents_and_take_each_step_once() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.instance().timing(quick).start_pair().await?;
    let mut calls = Vec::new();
    for (number, instance) in (1..).zip(&instances) {
        let agent = ActiveAgent::new(&site, instance.grpc, number).await?;
        calls.push(updating(&agent).await?);
    }
    site.becomes("SELECT count(*) FROM agent_updates", "2")
        .await?;
    release(&site, 1, "1.1.0").await?;
    start(&site, "", "2,50%,100%").await?;
    for call in &mut calls {
        call.next_offer().await?;
        call.says(state(UpdateStep::Approved, 1)).await?;
    }
    site.becomes(STATE, "done").await?;
    let steps = "SELECT count(*) FROM rollout_events WHERE actor = 'svc-ingest'";
    site.expect(steps, "3").await
}
