//! Replaced, cloned and retired machines.

use std::time::Duration;

use anyhow::{Context, Result};
use svc_front::peer::ClientKey;
use svc_proto::v1::AgentStatus::{Pending, Revoked};
use svc_sandbox::Identity;
use svc_testkit::{
    FakeAgent, MANUAL, REINSTALL, RefusedCall, eventually, is_active, machine, token,
};
use tonic::Code;

use super::World;

#[tokio::test]
async fn a_reinstall_token_replaces_an_agent_only_after_its_quiet_time() -> Result<()> {
    let world = World::new().await?;
    let address = world.instance.grpc;
    let reinstall = token(&world.site, REINSTALL).await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(machine(1))?;
    let mut stream = newcomer.pending(address, &reinstall).await?;
    world.presence(&first, "offline", "11 minutes").await?;
    assert!(is_active(&stream.answer().await?), "the quiet time is over");
    assert_eq!(world.status(&incumbent).await?, Revoked);

    let (_, second) = world.install(machine(2)).await?;
    world.presence(&second, "offline", "11 minutes").await?;
    let replacement = FakeAgent::on(machine(2))?;
    let at_once = replacement.register(address, &reinstall).await?;
    assert!(is_active(&at_once));
    assert_eq!(at_once.host_id, second.host_id);
    let (_, third) = world.install(machine(2)).await?;
    assert_eq!(third.status(), Pending, "its token allows no reinstall");
    Ok(())
}

#[tokio::test]
async fn replicas_with_a_reinstall_token_do_not_evict_one_another() -> Result<()> {
    let world = World::new().await?;
    let address = world.instance.grpc;
    let reinstall = token(&world.site, REINSTALL).await?;
    let (_, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    for _ in 0..4 {
        let replica = FakeAgent::on(machine(1))?;
        replica.register(address, &reinstall).await?;
    }
    world.presence(&first, "offline", "11 minutes").await?;
    let statuses = "SELECT string_agg(status, ',' ORDER BY created_at) FROM agents";
    eventually("one of them is admitted", async || {
        let found = world.site.psql(statuses).await;
        found.is_ok_and(|statuses| statuses.starts_with("revoked"))
    })
    .await?;
    // Several polls later it is still the same one.
    let count = |status| format!("SELECT count(*) FROM agents WHERE status = '{status}'");
    for _ in 0..5 {
        FakeAgent::on(machine(9))?.refused(address, "x").await?;
        world.site.expect(&count("active"), "1").await?;
    }
    world.site.expect(&count("revoked"), "1").await
}

#[tokio::test]
async fn a_clone_of_a_live_key_is_refused_and_may_register_a_successor_key() -> Result<()> {
    let world = World::new().await?;
    let address = world.instance.grpc;
    let (original, first) = world.install(machine(1)).await?;
    let jwt = &first.credential.as_ref().expect("a JWT").jwt;
    let mut live = original.heartbeat(address, jwt).await?;
    let clone = FakeAgent {
        host: machine(2),
        ..original.clone()
    };
    for _ in 0..2 {
        let refused = clone.try_heartbeat(address, jwt, clone.hello()).await?;
        let refused = refused.err().context("the clone has a stream")?;
        refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    }
    let events =
        "SELECT count(*), min(reason), min(host(address)) FROM agent_events WHERE kind = 'clone'";
    let expected = "1|a copy of this identity was refused|127.0.0.1";
    world.site.expect(events, expected).await?;
    live.report_acked(1..=1).await?;
    let refused = clone.refused(address, "").await?;
    refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    assert!(is_active(&world.register(&original).await?));

    let successor = FakeAgent::on(machine(2))?;
    let mut request = clone.request("");
    request.successor_key = key_of(&successor.identity)?.to_vec();
    for _ in 0..2 {
        let mut stream = clone.send(address, request.clone()).await??;
        let answer = stream.answer().await?;
        assert_eq!(answer.status(), Pending);
        assert!(!is_active(&answer));
        // The decision goes to a connection with the new key.
        assert_eq!(stream.next().await?, None);
    }
    let row = "SELECT pending_reason, cloned_from, (SELECT count(*) FROM hosts) FROM agents WHERE status = 'pending'";
    let expected = format!("clone|{}|2", first.agent_id);
    world.site.expect(row, &expected).await?;

    let mut stream = successor.open(address, "").await??;
    let waiting = stream.answer().await?;
    assert_eq!(waiting.status(), Pending);
    world.decide(&waiting, "approve_agent('ann')").await?;
    assert!(is_active(&stream.answer().await?));
    Ok(())
}

#[tokio::test]
async fn at_most_ten_clones_of_an_agent_are_pending_and_an_unknown_key_has_none() -> Result<()> {
    let world = World::new().await?;
    let (original, _) = world.install(machine(1)).await?;
    let mut client = original.connect(world.instance.grpc).await?;
    let mut refused = None;
    for number in 0..12_u8 {
        let mut request = original.request("");
        request.host = Some(machine(100 + u32::from(number)));
        request.successor_key = vec![number; 32];
        if let Err(status) = client.register(request).await {
            refused = Some(RefusedCall::of(&status));
        }
        // Slower than the rate limit of the key, which is another rule.
        tokio::time::sleep(Duration::from_millis(if number > 7 { 1100 } else { 0 })).await;
    }
    let refused = refused.expect("the eleventh is refused");
    refused.assert_with_delay(Code::ResourceExhausted, "RATE_LIMITED");
    let clones = "SELECT count(*) FROM agents WHERE cloned_from IS NOT NULL";
    world.site.expect(clones, "10").await?;

    let unknown = FakeAgent::on(machine(50))?;
    let mut request = unknown.request(&world.auto);
    request.successor_key = vec![77; 32];
    let sent = unknown.send(world.instance.grpc, request).await?;
    let status = sent.expect_err("no agent has this key");
    assert_eq!(status.code(), Code::InvalidArgument);
    Ok(())
}

#[tokio::test]
async fn two_pending_keys_of_one_machine_cannot_both_be_approved() -> Result<()> {
    let world = World::new().await?;
    let manual = token(&world.site, MANUAL).await?;
    for _ in 0..2 {
        let agent = FakeAgent::on(machine(1))?;
        agent.register(world.instance.grpc, &manual).await?;
    }
    let psql = async |sql| world.site.psql(sql).await;
    let apart = "SELECT approve_agent(id, 'ann', 'new-host') FROM agents LIMIT 1";
    psql(apart).await.expect_err("the host has no active agent");
    let approve = "SELECT approve_agent(id, 'ann') FROM agents WHERE status = 'pending' LIMIT 1";
    psql(approve).await?;
    psql(approve).await.expect_err("it has one now");
    let plain = "UPDATE agents SET status = 'active' WHERE status = 'pending'";
    psql(plain).await.expect_err("not by plain SQL either");
    Ok(())
}

fn key_of(identity: &Identity) -> Result<[u8; 32]> {
    Ok(ClientKey::of(&identity.cert_der.clone().into())?.0)
}
