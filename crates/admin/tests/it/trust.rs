//! Trust anchors through the service's port: who is told of them, who is counted as locked out, and what the command refuses.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use svc_ingest::config::Timing;
use svc_proto::{
    ClientMessage, ServerMessage,
    v1::{Hello, Report, TrustAnchors, TrustState},
};
use svc_sandbox::Authority;
use svc_testkit::{ActiveAgent, HeartbeatCall, Site, assert_contains, metric_becomes, sample};

use crate::commands::{json, output_of};

fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
    timing.fleet_gauges = Duration::from_millis(500);
}

/// A new authority, added with the command: its certificate and its hash.
async fn added(site: &Site, name: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let authority = Authority::new(name)?;
    let file = site.path(&format!("{name}.pem"));
    fs::write(&file, authority.cert_pem())?;
    let der = CertificateDer::from_pem_slice(authority.cert_pem().as_bytes())?;
    output_of(site, &["trust", "add", &file.display().to_string()]).await?;
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der);
    Ok((der.to_vec(), hash.as_ref().to_vec()))
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(anchors: &[&Vec<u8>], problem: &str) -> TrustState {
    TrustState {
        anchors: anchors.iter().map(|hash| hash.to_vec()).collect(),
        problem: problem.into(),
    }
}

async fn open(agent: &ActiveAgent, trust: Option<TrustState>) -> Result<HeartbeatCall> {
    let hello = Hello {
        trust,
        ..agent.agent.hello()
    };
    let opened = agent.agent.try_heartbeat(agent.address, &agent.jwt, hello);
    match opened.await? {
        Ok(call) => Ok(call),
        Err(refused) => bail!("{refused:?}"),
    }
}

async fn says(call: &HeartbeatCall, trust: TrustState) -> Result<()> {
    let report = Report {
        trust: Some(trust),
        ..Report::default()
    };
    call.send(ClientMessage::Report(report)).await
}

async fn announcement(call: &mut HeartbeatCall) -> Result<TrustAnchors> {
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Trust(list))) => return Ok(list),
            Ok(Some(_)) => {}
            ended => bail!("{ended:?}"),
        }
    }
}

/// Reports this sample; no announcement may come before its acknowledgement.
async fn is_told_nothing(call: &mut HeartbeatCall, seq: u64) -> Result<()> {
    call.report(vec![sample(seq)], vec![]).await?;
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Ack(ack))) if ack.up_to_seq == seq => return Ok(()),
            Ok(Some(ServerMessage::Trust(list))) => bail!("{list:?}"),
            Ok(Some(_)) => {}
            ended => bail!("{ended:?}"),
        }
    }
}

/// Two words of an agent are stored one after another, so the pass that stored the first one is over.
async fn passes(site: &Site, call: &HeartbeatCall, anchors: &[&Vec<u8>]) -> Result<()> {
    for problem in ["one word", "another word"] {
        says(call, state(anchors, problem)).await?;
        let known = format!("SELECT count(*) FROM agent_trust WHERE problem = '{problem}'");
        site.becomes(&known, "1").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_anchor_is_announced_once_a_stream_to_the_agents_that_lack_it() -> Result<()> {
    let site = Site::new().await?;
    let (instance, has) = site.instance().timing(quick).with_agent(&site).await?;
    let lacks = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let third_party = ActiveAgent::new(&site, instance.grpc, 3).await?;
    let (old, old_hash) = added(&site, "old").await?;
    let mut has_call = open(&has, Some(state(&[&old_hash], ""))).await?;
    let mut lacks_call = open(&lacks, Some(state(&[], ""))).await?;
    let mut silent = open(&third_party, None).await?;
    let told = announcement(&mut lacks_call).await?;
    assert_eq!(
        (&told.certificates, told.retired.len()),
        (&vec![old.clone()], 0)
    );
    passes(&site, &has_call, &[&old_hash]).await?;
    is_told_nothing(&mut has_call, 1).await?;
    is_told_nothing(&mut silent, 1).await?;

    let (new, new_hash) = added(&site, "new").await?;
    for call in [&mut has_call, &mut lacks_call] {
        let told = announcement(call).await?;
        assert_eq!(told.certificates, [new.clone(), old.clone()]);
    }
    // An agent that does not take it is told again on its next stream only.
    passes(&site, &has_call, &[&old_hash]).await?;
    is_told_nothing(&mut has_call, 2).await?;
    is_told_nothing(&mut silent, 2).await?;
    drop(has_call);
    let mut has_call = open(&has, Some(state(&[&old_hash], "no room"))).await?;
    announcement(&mut has_call).await?;
    drop(has_call);
    let mut has_call = open(&has, Some(state(&[&old_hash, &new_hash], ""))).await?;
    passes(&site, &has_call, &[&old_hash, &new_hash]).await?;
    is_told_nothing(&mut has_call, 3).await
}

#[tokio::test]
async fn the_command_names_who_would_be_locked_out_and_refuses_to_retire_what_they_need()
-> Result<()> {
    let site = Site::new().await?;
    let (instance, both) = site.instance().timing(quick).with_agent(&site).await?;
    let (_, old) = added(&site, "old").await?;
    let (_, new) = added(&site, "new").await?;
    let mut calls = vec![open(&both, Some(state(&[&old, &new], ""))).await?];
    let states = [Some(state(&[&old], "no room")), Some(state(&[], "")), None];
    for (number, said) in (2..).zip(states) {
        let agent = ActiveAgent::new(&site, instance.grpc, number).await?;
        calls.push(open(&agent, said).await?);
    }
    site.becomes("SELECT count(*) FROM agent_trust", "3")
        .await?;
    let status = json(&site, &["trust", "status"]).await?;
    let figures = |at: usize| {
        let anchor = &status[at];
        (
            &anchor["confirmed"],
            &anchor["locked_out"],
            &anchor["unknown"],
        )
    };
    assert_eq!(figures(0), (&1.into(), &1.into(), &2.into()), "{status}");
    assert_eq!(figures(1), (&2.into(), &0.into(), &2.into()), "{status}");
    assert_eq!(status[0]["hash"], hex(&new));
    let named = &status[0]["agents"][0];
    assert_eq!(
        (&named["hostname"], &named["problem"]),
        (&"web-2".into(), &"no room".into())
    );
    let text = output_of(&site, &["trust", "status", "--all"]).await?;
    assert_contains(&text, "locked out by switching to it now: 1");
    assert_contains(&text, "web-2");
    let lacking = |expected: f64| move |value: f64| value == expected;
    metric_becomes(instance.http, "agents_without_anchor", lacking(1.0)).await?;

    let retire = async |hash: &[u8], code| {
        let arguments = ["trust", "retire", &hex(hash)[..12]];
        site.command_process(&arguments)
            .set("USER", "ann")
            .exits(code)
            .await
    };
    let refused = retire(&old, 1).await?;
    assert_contains(
        &refused.stderr,
        "agents that trust no other listed anchor: 1",
    );
    says(&calls[1], state(&[&old, &new], "")).await?;
    metric_becomes(instance.http, "agents_without_anchor", lacking(0.0)).await?;
    retire(&old, 0).await?;
    for call in &mut calls[..2] {
        while announcement(call).await?.retired != [old.clone()] {}
    }
    let refused = retire(&new, 1).await?;
    assert_contains(
        &refused.stderr,
        "agents that trust no other listed anchor: 2",
    );
    let forced = ["trust", "retire", &hex(&new), "--force"];
    output_of(&site, &forced).await?;
    let events = "SELECT string_agg(kind || ' by ' || actor, ', ' ORDER BY id) FROM people_events WHERE kind LIKE 'trust%'";
    let (added, retired) = ("trust anchor added by ann", "trust anchor retired by ann");
    let expected = format!("{added}, {added}, {retired}, {retired}");
    site.expect(events, &expected).await
}

#[tokio::test]
async fn only_certificates_are_added_and_doctor_knows_whether_they_verify_the_service() -> Result<()>
{
    let site = Site::new().await?;
    let add = async |name: &str, code| {
        let file = site.path(name).display().to_string();
        let add = site.command_process(&["trust", "add", &file]);
        add.exits(code).await
    };
    let doctor = async || -> Result<String> {
        let ended = site.process().arguments(&["doctor"]).run().await?;
        let mut lines = ended.stdout.lines();
        let line = lines.find(|line| line.contains("trust anchors"));
        Ok(line.unwrap_or_default().to_owned())
    };
    let block =
        |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
    for (name, text) in [
        ("empty.pem", String::new()),
        ("noise.pem", "noise".into()),
        ("damaged.pem", block("!!!!")),
        ("other.pem", block("AAAA")),
    ] {
        fs::write(site.path(name), text)?;
        add(name, 1).await?;
    }
    site.expect("SELECT count(*) FROM trust_anchors", "0")
        .await?;
    assert_eq!(doctor().await?, "", "nobody has added one");

    let other = Authority::new("other")?;
    fs::write(site.path("other.pem"), other.cert_pem())?;
    let issued = other.issue_server(&["localhost"])?;
    issued.write(site.folder(), "issued")?;
    assert_eq!(add("other.pem", 0).await?.stderr, "");
    let warned = add("issued.crt", 0).await?;
    assert_contains(&warned.stderr, "it is no authority");
    assert_contains(&doctor().await?, "none of 2 verifies the certificate");
    add("server.crt", 0).await?;
    let line = doctor().await?;
    ensure!(
        line.starts_with("ok") && line.contains("3 in use"),
        "{line}"
    );
    let expired = svc_sandbox::Identity::expired_server(&["localhost"])?;
    expired.write(site.folder(), "expired")?;
    let warned = add("expired.crt", 0).await?;
    assert_contains(&warned.stderr, "it ended on 2001");
    let shown = json(&site, &["trust", "status"]).await?;
    let subject = shown[0]["subject"].as_str().context("a subject")?;
    assert_contains(subject, "localhost");
    Ok(())
}
