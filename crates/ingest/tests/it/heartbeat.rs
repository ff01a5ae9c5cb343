//! The heartbeat stream: the rules of the protocol, and what they leave in the database.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use svc_proto::{
    ClientMessage, ServerMessage,
    v1::{Gap, HostFacts, Report, Sample, Vitals},
};
use svc_testkit::{
    ActiveAgent, HeartbeatCall, Instance, InstanceBuilder, RefusedCall, Site, machine, request,
    sample,
};
use tonic::Code;

const PRESENCE: &str = "SELECT presence, cause FROM agent_state";
const EPOCH: &str = "SELECT presence, epoch FROM agent_state";
const PRESENCE_CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'presence'";
/// In this order: acknowledged, stored, rejected, gaps.
const BOOKS: &str = "SELECT acked_seq, stored_count, rejected_count, gap_count FROM agent_state";

/// One instance and one active agent.
struct World {
    site: Site,
    instance: Instance,
    agent: ActiveAgent,
}

impl World {
    async fn new() -> Result<Self> {
        Self::tuned(|builder| builder).await
    }

    async fn tuned(tune: impl FnOnce(InstanceBuilder) -> InstanceBuilder) -> Result<Self> {
        let site = Site::new().await?;
        let instance = tune(site.instance()).start().await?;
        let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
        Ok(Self {
            site,
            instance,
            agent,
        })
    }
}

/// The refusal that ends a stream.
async fn refusal(call: &mut HeartbeatCall) -> Result<RefusedCall> {
    call.end().await?.context("the stream ended with OK")
}

#[tokio::test]
async fn a_stream_is_welcomed_and_its_samples_are_acknowledged_once_they_are_stored() -> Result<()>
{
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder
            .set("INGEST_HEARTBEAT_INTERVAL", "45s")
            .set("INGEST_AGENT_LATEST_VERSION", "2.1.0")
    })
    .await?;
    let mut call = agent.heartbeat().await?;
    let settings = call.welcome.settings.clone().context("no settings")?;
    let interval = settings.heartbeat_interval.context("no interval")?;
    assert_eq!(interval.seconds, 45);
    let release = settings.release.context("no release")?;
    assert_eq!(release.version, "2.1.0");
    assert_eq!(release.download_base_url, "http://localhost:3000");
    assert_eq!(call.welcome.acked_seq, 0);
    assert!(call.welcome.server_time.is_some());
    site.expect(PRESENCE, "online|connected").await?;

    call.report(vec![sample(1), sample(2)], vec![]).await?;
    assert_eq!(call.next_ack().await?.up_to_seq, 2);
    let stored = "SELECT count(*), max(seq) FROM host_metrics";
    site.expect(stored, "2|2").await?;
    site.expect(BOOKS, "2|2|0|0").await?;
    let vitals = "SELECT cpu_percent, memory_used_bytes, vitals_at IS NOT NULL FROM hosts";
    site.expect(vitals, "12.5|2|t").await?;
    let overview = "SELECT online, agent_version, last_seen_at IS NOT NULL FROM host_overview";
    site.expect(overview, "t|1.0.0|t").await?;

    call.goodbye().await?;
    site.becomes(PRESENCE, "offline|goodbye").await?;
    let again = agent.heartbeat().await?;
    assert_eq!(again.welcome.acked_seq, 2, "the watermark");
    let events =
        "SELECT string_agg(concat(from_status, '>', to_status, ' ', reason), ', ' ORDER BY id)
           FROM agent_events WHERE kind = 'presence'";
    let expected = "offline>online connected, online>offline goodbye, offline>online connected";
    site.expect(events, expected).await
}

#[tokio::test]
async fn a_sample_sent_twice_is_stored_once_and_acknowledged_again() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    for _ in 0..3 {
        call.report((1..=3).map(sample).collect(), vec![]).await?;
        assert_eq!(call.next_ack().await?.up_to_seq, 3);
    }
    drop(call);
    agent.heartbeat().await?.report_acked(2..=4).await?;
    let stored = "SELECT count(*), count(DISTINCT seq) FROM host_metrics";
    site.expect(stored, "4|4").await?;
    site.expect(BOOKS, "4|4|0|0").await
}

#[tokio::test]
async fn skipped_declared_and_rejected_numbers_are_in_the_books() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    let mut bad = sample(4);
    bad.vitals = Some(Vitals {
        cpu_percent: f64::NAN,
        ..Vitals::default()
    });
    let lost = Gap {
        first_seq: 6,
        last_seq: 9,
        reason: "spool full".into(),
    };
    let samples = vec![sample(1), bad, sample(5), sample(10)];
    call.report(samples, vec![lost]).await?;
    let ack = call.next_ack().await?;
    assert_eq!(ack.up_to_seq, 10);
    let [rejection] = &ack.rejected[..] else {
        bail!("not one rejection: {ack:?}");
    };
    let reason = "cpu_percent is not between 0 and 100";
    assert_eq!((rejection.seq, rejection.reason.as_str()), (4, reason));
    site.expect(BOOKS, "10|3|1|6").await?;
    let gaps = "SELECT string_agg(concat(first_seq, '-', last_seq, ' ', kind), ', ' ORDER BY first_seq) FROM metric_gaps";
    let expected = "2-3 not sent, 4-4 rejected, 6-9 declared";
    site.expect(gaps, expected).await
}

#[tokio::test]
async fn many_rejections_are_named_in_several_acknowledgements_each_once() -> Result<()> {
    const SAMPLES: u64 = 250;
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    let bad = |seq| Sample {
        vitals: None,
        ..sample(seq)
    };
    let samples = (1..=SAMPLES).map(bad).collect();
    call.report(samples, vec![]).await?;
    let (mut named, mut up_to) = (Vec::new(), 0);
    while up_to < SAMPLES {
        let ack = call.next_ack().await?;
        named.extend(ack.rejected.iter().map(|rejection| rejection.seq));
        assert!(ack.up_to_seq > up_to && ack.rejected.len() <= 100);
        up_to = ack.up_to_seq;
        assert_eq!(named, (1..=up_to).collect::<Vec<_>>(), "all up to it");
    }
    let gaps = "SELECT concat(first_seq, '-', last_seq, ' ', kind) FROM metric_gaps";
    site.expect(gaps, "1-250 rejected").await
}

#[tokio::test]
async fn a_violation_of_the_protocol_ends_the_stream_with_its_reason() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| timing.hello_deadline = Duration::from_secs(2))
    })
    .await?;
    let open = || agent.agent.open_stream(agent.address, &agent.jwt);
    let (out, mut responses) = open().await??;
    let report = request(ClientMessage::Report(Report::default()));
    out.send(report).await?;
    let status = responses.message().await.expect_err("Hello comes first");
    RefusedCall::of(&status).assert(Code::InvalidArgument, "PROTOCOL_VIOLATION");

    let (_silent, mut responses) = open().await??;
    let status = responses.message().await.expect_err("no Hello");
    RefusedCall::of(&status).assert(Code::DeadlineExceeded, "HELLO_TIMEOUT");

    let mut nameless = agent.agent.hello();
    nameless.run_id.clear();
    let refused = agent.refused_hello(nameless).await?;
    refused.assert(Code::InvalidArgument, "MALFORMED_REQUEST");

    let report = |samples| {
        let gaps = vec![];
        ClientMessage::Report(Report { samples, gaps })
    };
    for violation in [
        ClientMessage::Hello(agent.agent.hello()),
        report(vec![sample(0)]),
        report(vec![sample(1); 501]),
    ] {
        let mut call = agent.heartbeat().await?;
        call.send(violation).await?;
        let refused = refusal(&mut call).await?;
        refused.assert(Code::InvalidArgument, "PROTOCOL_VIOLATION");
    }
    site.becomes(PRESENCE, "offline|lost").await
}

#[tokio::test]
async fn the_newest_stream_replaces_older_ones_on_any_instance() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let sibling = site.instance().start().await?;
    let mut old = agent.heartbeat().await?;
    let mut new = agent.heartbeat_at(sibling.grpc).await?;
    let refused = refusal(&mut old).await?;
    refused.assert(Code::Aborted, "SESSION_REPLACED");
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
    let revoke = "SELECT revoke_agent(id, 'ann') FROM agents";
    site.psql(revoke).await?;
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
    let nowhere = "postgres://svc@127.0.0.1:1/svc";
    let world = World::tuned(|builder| {
        let builder = builder.set("INGEST_LISTEN_DATABASE_URL", nowhere);
        builder.timing(|timing| timing.poll = Duration::from_millis(200))
    })
    .await?;
    let mut call = world.agent.heartbeat().await?;
    let revoke = "SELECT revoke_agent(id, 'ann') FROM agents";
    world.site.psql(revoke).await?;
    assert_eq!(refusal(&mut call).await?.reason, "AGENT_REVOKED");
    Ok(())
}

#[tokio::test]
async fn a_copy_on_another_machine_is_refused_and_the_original_keeps_its_stream() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let mut original = agent.heartbeat().await?;
    let copy = agent.copied_to(machine(2));
    for _ in 0..3 {
        let refused = copy.refused_heartbeat().await?;
        refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    }
    original.report_acked(1..=1).await?;
    let events = "SELECT count(*), min(reason) FROM agent_events WHERE kind = 'clone'";
    let expected = "1|a copy of this identity was refused";
    site.expect(events, expected).await?;
    site.expect(EPOCH, "online|1").await
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
    assert_eq!(
        refused.reason, "SESSION_REPLACED",
        "the same as after a reboot"
    );
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
    let renewed = loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Credential(credential))) => break credential,
            Ok(Some(_)) => {}
            ended => bail!("the stream ended: {ended:?}"),
        }
    };
    assert_ne!(renewed.jwt, world.agent.jwt);
    drop(call);
    let address = world.instance.grpc;
    world.agent.agent.heartbeat(address, &renewed.jwt).await?;
    Ok(())
}

#[tokio::test]
async fn a_silent_stream_is_ended_and_its_agent_is_offline() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| timing.heartbeat_interval = Duration::from_millis(100))
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
    end.assert(Code::Unavailable, "DRAINING");
    assert!(end.retry);
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
    let lost = "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
                SELECT '00000000-0000-0000-0000-000000000001', kid, 'gone', '0', '', '', now() - interval '5 seconds'
                  FROM ingest_instances LIMIT 1;
                UPDATE agent_state SET presence = 'online', instance_id = '00000000-0000-0000-0000-000000000001'";
    site.psql(lost).await?;
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
