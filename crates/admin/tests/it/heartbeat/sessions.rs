//! How streams end other than by their client: replacement, revocation, drains, sweeps and fencing.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use svc_proto::{ServerMessage, v1::HostFacts};
use svc_testkit::{
    ABSENT, ActiveAgent, InstanceBuilder, SAME_KEY, absent_instance, health_becomes, machine,
};
use tonic::Code;

use super::{EPOCH, PRESENCE, PRESENCE_CHANGES, World, held::only_digests_are_read, refusal};

#[tokio::test]
async fn the_newest_stream_replaces_older_ones_on_any_instance() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let sibling = site.instance().start().await?;
    let mut old = agent.heartbeat().await?;
    let mut new = agent.heartbeat_at(sibling.grpc).await?;
    let refused = refusal(&mut old).await?;
    refused.assert_with_delay(Code::Aborted, "SESSION_REPLACED");
    let mut newest = agent.heartbeat_at(sibling.grpc).await?;
    let refused = refusal(&mut new).await?;
    refused.assert(Code::Aborted, "SESSION_REPLACED");
    newest.report_acked(1..=1).await?;
    site.expect(EPOCH, "online|3").await?;
    // It was online all the time.
    site.expect(PRESENCE_CHANGES, "1").await
}

#[tokio::test]
async fn a_revocation_or_deletion_ends_the_stream_on_every_instance() -> Result<()> {
    // The poll is far away, so notifications carry the change.
    let no_poll =
        |builder: InstanceBuilder| builder.timing(|timing| timing.poll = Duration::from_hours(1));
    let World { site, agent, .. } = &World::tuned(no_poll).await?;
    let sibling = no_poll(site.instance()).start().await?;
    let other = ActiveAgent::new(site, sibling.grpc, 2).await?;
    let streams = [agent.heartbeat().await?, other.heartbeat().await?];
    site.decide_all("revoke").await?;
    for mut call in streams {
        let refused = refusal(&mut call).await?;
        refused.assert(Code::PermissionDenied, "AGENT_REVOKED");
    }
    let offline =
        "SELECT count(*) FROM agent_state WHERE presence = 'offline' AND cause = 'refused'";
    site.becomes(offline, "2").await?;
    let refused = agent.refused_heartbeat().await?;
    assert_eq!(refused.reason, "AGENT_REVOKED");

    let deleted = ActiveAgent::new(site, agent.address, 3).await?;
    let mut call = deleted.heartbeat().await?;
    let delete = "DELETE FROM agents WHERE status = 'active'";
    site.psql(delete).await?;
    assert_eq!(refusal(&mut call).await?.code, Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn the_poll_finds_a_revocation_when_notifications_are_cut_off() -> Result<()> {
    let world = World::tuned(|builder| {
        let builder = builder.without_notifications();
        builder.timing(|timing| timing.poll = Duration::from_millis(200))
    })
    .await?;
    let mut call = world.agent.heartbeat().await?;
    world.site.decide_all("revoke").await?;
    assert_eq!(refusal(&mut call).await?.reason, "AGENT_REVOKED");
    Ok(())
}

/// Nothing differs, so no session is read.
#[tokio::test]
async fn the_poll_reads_only_a_digest_while_nothing_changes() -> Result<()> {
    let world =
        World::tuned(|builder| builder.timing(|timing| timing.poll = Duration::from_millis(100)))
            .await?;
    let _call = world.agent.heartbeat().await?;
    only_digests_are_read(&world).await
}

#[tokio::test]
async fn a_new_boot_takes_over_and_an_earlier_boot_that_returns_proves_a_copy() -> Result<()> {
    let agent = &World::new().await?.agent;
    let booted = |boot: &str| {
        agent.copied_to(HostFacts {
            boot_id: boot.into(),
            ..machine(1)
        })
    };
    let (first, second) = (booted("boot-a"), booted("boot-b"));
    let mut original = first.heartbeat().await?;
    let mut copy = second.heartbeat().await?;
    let refused = refusal(&mut original).await?;
    assert_eq!(refused.reason, "SESSION_REPLACED", "as after a reboot");
    let mut back = first.heartbeat().await?;
    assert_eq!(refusal(&mut copy).await?.reason, "SESSION_REPLACED");
    let refused = second.refused_heartbeat().await?;
    assert_eq!(refused.reason, "IDENTITY_IN_USE");
    back.report_acked(1..=1).await?;
    let third = booted("boot-c").heartbeat().await;
    assert!(third.is_ok(), "a real reboot still takes over");
    Ok(())
}

#[tokio::test]
async fn a_jwt_is_renewed_over_the_stream() -> Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| timing.renew_before = Duration::from_secs(24 * 3600 - 1))
    })
    .await?;
    let mut call = world.agent.heartbeat().await?;
    let renewed = call.next_credential().await?;
    assert_ne!(renewed, world.agent.jwt);
    drop(call);
    let address = world.instance.grpc;
    world.agent.agent.heartbeat(address, &renewed).await?;
    Ok(())
}

#[tokio::test]
async fn a_silent_stream_is_ended_and_its_agent_is_offline() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| {
            timing.heartbeat_interval = Duration::from_millis(100);
            timing.silence_margin = Duration::from_secs(1);
        })
    })
    .await?;
    let mut call = agent.heartbeat().await?;
    assert_eq!(refusal(&mut call).await?.code, Code::DeadlineExceeded);
    site.becomes(PRESENCE, "offline|lost").await
}

#[tokio::test]
async fn a_stopping_instance_gives_its_agents_a_drain_slot_and_they_stay_online() -> Result<()> {
    let World {
        site,
        instance,
        agent,
    } = World::tuned(|builder| builder.set("INGEST_DRAIN_TIMEOUT", "3s")).await?;
    let sibling = site.instance().start().await?;
    let mut call = agent.heartbeat().await?;
    let stopping = instance.ask_to_stop();
    match call.receive().await? {
        Ok(Some(ServerMessage::Drain(drain))) => assert!(drain.reconnect_after.is_some()),
        other => bail!("not a drain: {other:?}"),
    }
    let end = refusal(&mut call).await?;
    end.assert_with_delay(Code::Unavailable, "DRAINING");
    stopping.ended().await?;
    let state =
        "SELECT presence, cause, online_until > now() + interval '20 seconds' FROM agent_state";
    site.expect(state, "online|drained|t").await?;
    let _back = agent.heartbeat_at(sibling.grpc).await?;
    let state = "SELECT presence, cause, online_until IS NULL FROM agent_state";
    site.expect(state, "online|connected|t").await?;
    site.expect(PRESENCE_CHANGES, "1").await
}

#[tokio::test]
async fn a_stopping_instance_serves_until_the_load_balancer_has_had_time_to_notice() -> Result<()> {
    const DELAY: Duration = Duration::from_secs(5);
    let world = World::tuned(|builder| builder.set("INGEST_DRAIN_DELAY", "5s")).await?;
    let (agent, http) = (&world.agent, world.instance.http);
    let mut first = agent.heartbeat().await?;
    let asked = Instant::now();
    let stopping = world.instance.ask_to_stop();
    health_becomes(http, 503, "").await?;
    let served = async {
        first.report_acked(1..=1).await?;
        let mut late = ActiveAgent::new(&world.site, agent.address, 2)
            .await?
            .heartbeat()
            .await?;
        match late.receive().await? {
            Ok(Some(ServerMessage::Drain(_))) => Ok(asked.elapsed()),
            other => bail!("not a drain: {other:?}"),
        }
    };
    match served.await {
        Ok(drained) => assert!(drained >= DELAY, "drained after {drained:?}"),
        // A machine this slow has missed the delay.
        Err(error) => assert!(asked.elapsed() >= DELAY, "{error:#}"),
    }
    drop(first);
    stopping.ended().await
}

#[tokio::test]
async fn the_sweep_takes_agents_of_a_lost_instance_and_of_a_drain_offline() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| {
            timing.lease_renewal = Duration::from_millis(200);
            timing.heartbeat_interval = Duration::from_millis(100);
        })
    })
    .await?;
    // An agent that vanishes is lost at once.
    drop(agent.heartbeat().await?);
    site.becomes(PRESENCE, "offline|lost").await?;
    let lost = absent_instance(SAME_KEY, "-5 seconds");
    let online = format!("UPDATE agent_state SET presence = 'online', instance_id = '{ABSENT}'");
    site.psql(&format!("{lost}; {online}")).await?;
    site.becomes(PRESENCE, "offline|instance lost").await?;
    let fenced = "SELECT fenced FROM ingest_instances WHERE hostname = 'gone'";
    site.expect(fenced, "t").await?;

    let drained =
        "UPDATE agent_state SET presence = 'online', cause = 'drained', online_until = now()";
    site.psql(drained).await?;
    site.becomes(PRESENCE, "offline|lost").await
}

#[tokio::test]
async fn a_fenced_instance_keeps_its_streams_under_a_new_id() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| timing.lease_renewal = Duration::from_millis(200))
    })
    .await?;
    let mut call = agent.heartbeat().await?;
    let instance = "SELECT instance_id FROM agent_state";
    let id = site.psql(instance).await?;
    let fence = format!(
        "UPDATE ingest_instances SET fenced = true;
         UPDATE agent_state SET presence = 'offline', cause = 'instance lost', instance_id = NULL WHERE instance_id = '{id}'"
    );
    site.psql(&fence).await?;
    site.becomes(PRESENCE, "online|connected").await?;
    assert_ne!(site.psql(instance).await?, id);
    call.report_acked(1..=1).await
}
