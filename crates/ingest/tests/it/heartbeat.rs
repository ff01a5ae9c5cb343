//! The heartbeat stream: the protocol's rules, and what they leave in the database.

use std::time::Duration;

use svc_proto::v1::{
    Gap, HostFacts, Sample, Vitals, heartbeat_request::Message as Say,
    heartbeat_response::Message as Hear,
};
use tonic::Code;

use crate::{
    agents::{AUTO, FakeAgent, Refused, machine, token},
    beats::{Beat, sample, saying},
    harness::{Instance, InstanceBuilder, Site, eventually},
};

struct World {
    site: Site,
    instance: Instance,
    agent: FakeAgent,
    jwt: String,
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        Self::tuned(|builder| builder).await
    }

    async fn tuned(tune: impl FnOnce(InstanceBuilder) -> InstanceBuilder) -> anyhow::Result<Self> {
        let site = Site::new().await?;
        let instance = tune(site.instance()).start().await?;
        let agent = FakeAgent::on(machine(1))?;
        let jwt = agent.jwt(instance.grpc, &token(&site, AUTO).await?).await?;
        Ok(Self {
            site,
            instance,
            agent,
            jwt,
        })
    }

    async fn beat(&self) -> anyhow::Result<Beat> {
        self.agent.beat(self.instance.grpc, &self.jwt).await
    }

    /// `presence|cause` of the one agent.
    async fn presence(&self) -> anyhow::Result<String> {
        self.site
            .psql("SELECT presence, cause FROM agent_state")
            .await
    }

    async fn presence_becomes(&self, wanted: &str) -> anyhow::Result<()> {
        eventually(wanted, async || {
            self.presence()
                .await
                .is_ok_and(|presence| presence == wanted)
        })
        .await
    }

    async fn books(&self) -> anyhow::Result<String> {
        self.site
            .psql("SELECT acked_seq, stored_count, rejected_count, gap_count FROM agent_state")
            .await
    }
}

fn reason(refused: Option<Refused>) -> (Code, String) {
    let refused = refused.expect("a refusal");
    (refused.code, refused.reason)
}

#[tokio::test]
async fn a_stream_is_welcomed_and_its_samples_are_acknowledged_once_they_are_stored()
-> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder
            .set("INGEST_HEARTBEAT_INTERVAL", "45s")
            .set("INGEST_AGENT_LATEST_VERSION", "2.1.0")
    })
    .await?;
    let mut beat = world.beat().await?;
    let settings = beat.welcome.settings.clone().expect("settings");
    assert_eq!(
        settings.heartbeat_interval.map(|interval| interval.seconds),
        Some(45)
    );
    let release = settings.release.expect("a release");
    assert_eq!(
        (release.version.as_str(), release.download_base_url.as_str()),
        ("2.1.0", "http://localhost:3000")
    );
    assert_eq!(beat.welcome.acked_seq, 0);
    assert!(beat.welcome.server_time.is_some());
    assert_eq!(world.presence().await?, "online|connected");

    beat.report(vec![sample(1), sample(2)], vec![]).await?;
    assert_eq!(beat.ack().await?.up_to_seq, 2);
    assert_eq!(
        world
            .site
            .psql("SELECT count(*), max(seq) FROM host_metrics")
            .await?,
        "2|2"
    );
    assert_eq!(world.books().await?, "2|2|0|0");
    let vitals = "SELECT cpu_percent, memory_used_bytes, vitals_at IS NOT NULL FROM hosts";
    assert_eq!(world.site.psql(vitals).await?, "12.5|2|t");
    let overview = "SELECT online, agent_version, last_seen_at IS NOT NULL FROM host_overview";
    assert_eq!(world.site.psql(overview).await?, "t|1.0.0|t");

    beat.goodbye().await?;
    world.presence_becomes("offline|goodbye").await?;
    let again = world.beat().await?;
    assert_eq!(again.welcome.acked_seq, 2, "where to go on");
    let events =
        "SELECT string_agg(concat(from_status, '>', to_status, ' ', reason), ', ' ORDER BY id)
                    FROM agent_events WHERE kind = 'presence'";
    let seen = world.site.psql(events).await?;
    assert_eq!(
        seen,
        "offline>online connected, online>offline goodbye, offline>online connected"
    );
    Ok(())
}

#[tokio::test]
async fn a_sample_sent_twice_is_stored_once_and_acknowledged_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut beat = world.beat().await?;
    for _ in 0..3 {
        beat.report(vec![sample(1), sample(2), sample(3)], vec![])
            .await?;
        assert_eq!(beat.ack().await?.up_to_seq, 3);
    }
    drop(beat);
    let mut beat = world.beat().await?;
    beat.report(vec![sample(2), sample(3), sample(4)], vec![])
        .await?;
    beat.acked(4).await?;
    assert_eq!(
        world
            .site
            .psql("SELECT count(*), count(DISTINCT seq) FROM host_metrics")
            .await?,
        "4|4"
    );
    assert_eq!(world.books().await?, "4|4|0|0");
    Ok(())
}

#[tokio::test]
async fn skipped_declared_and_rejected_numbers_are_in_the_books() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut beat = world.beat().await?;
    let mut hot = sample(4);
    hot.vitals = Some(Vitals {
        cpu_percent: f64::NAN,
        ..Vitals::default()
    });
    let lost = Gap {
        first_seq: 6,
        last_seq: 9,
        reason: "spool full".into(),
    };
    beat.report(vec![sample(1), hot, sample(5), sample(10)], vec![lost])
        .await?;
    let ack = beat.ack().await?;
    assert_eq!(ack.up_to_seq, 10);
    assert_eq!(ack.rejected.len(), 1);
    assert_eq!(
        (ack.rejected[0].seq, ack.rejected[0].reason.as_str()),
        (4, "cpu_percent is not between 0 and 100")
    );
    assert_eq!(world.books().await?, "10|3|1|6");
    let gaps = "SELECT string_agg(concat(first_seq, '-', last_seq, ' ', kind), ', ' ORDER BY first_seq) FROM metric_gaps";
    assert_eq!(
        world.site.psql(gaps).await?,
        "2-3 not sent, 4-4 rejected, 6-9 declared"
    );
    Ok(())
}

#[tokio::test]
async fn many_rejections_are_named_in_several_acknowledgements_each_once() -> anyhow::Result<()> {
    const SAMPLES: u64 = 250;
    let world = World::new().await?;
    let mut beat = world.beat().await?;
    let bad = |seq| Sample {
        vitals: None,
        ..sample(seq)
    };
    beat.report((1..=SAMPLES).map(bad).collect(), vec![])
        .await?;
    let (mut named, mut up_to) = (Vec::new(), 0);
    while up_to < SAMPLES {
        let ack = beat.ack().await?;
        named.extend(ack.rejected.iter().map(|rejection| rejection.seq));
        assert!(ack.up_to_seq > up_to && ack.rejected.len() <= 100);
        up_to = ack.up_to_seq;
        assert_eq!(named, (1..=up_to).collect::<Vec<_>>(), "all up to it");
    }
    let gaps = "SELECT concat(first_seq, '-', last_seq, ' ', kind) FROM metric_gaps";
    assert_eq!(world.site.psql(gaps).await?, "1-250 rejected");
    Ok(())
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_stream_with_its_reason() -> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| timing.hello_deadline = Duration::from_secs(2))
    })
    .await?;
    let violation = (Code::InvalidArgument, "PROTOCOL_VIOLATION".to_owned());
    let (out, mut responses) = world
        .agent
        .stream(world.instance.grpc, &world.jwt)
        .await??;
    out.send(saying(Say::Report(Default::default()))).await?;
    let status = responses.message().await.expect_err("Hello comes first");
    assert_eq!(reason(Some(Refused::of(&status))), violation);

    let (_silent, mut responses) = world
        .agent
        .stream(world.instance.grpc, &world.jwt)
        .await??;
    let status = responses.message().await.expect_err("no Hello");
    assert_eq!(
        reason(Some(Refused::of(&status))),
        (Code::DeadlineExceeded, "HELLO_TIMEOUT".to_owned())
    );

    let mut nameless = world.agent.hello();
    nameless.run_id.clear();
    let refused = world
        .agent
        .beat_with(world.instance.grpc, &world.jwt, nameless)
        .await?
        .expect_err("no run_id");
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::InvalidArgument, "MALFORMED_REQUEST")
    );

    for broken in [
        Say::Hello(world.agent.hello()),
        Say::Report(svc_proto::v1::Report {
            samples: vec![sample(0)],
            gaps: vec![],
        }),
        Say::Report(svc_proto::v1::Report {
            samples: vec![sample(1); 501],
            gaps: vec![],
        }),
    ] {
        let mut beat = world.beat().await?;
        beat.say(broken).await?;
        assert_eq!(reason(beat.end().await?), violation);
    }
    world.presence_becomes("offline|lost").await
}

#[tokio::test]
async fn a_client_that_vanishes_is_offline_and_lost() -> anyhow::Result<()> {
    let world = World::new().await?;
    let beat = world.beat().await?;
    assert_eq!(world.presence().await?, "online|connected");
    drop(beat);
    world.presence_becomes("offline|lost").await
}

#[tokio::test]
async fn the_newest_stream_wins_on_whichever_instance() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sibling = world.site.instance().start().await?;
    let mut old = world.beat().await?;
    let mut new = world.agent.beat(sibling.grpc, &world.jwt).await?;
    let replaced = (Code::Aborted, "SESSION_REPLACED".to_owned());
    assert_eq!(reason(old.end().await?), replaced);
    let mut newest = world.agent.beat(sibling.grpc, &world.jwt).await?;
    assert_eq!(
        reason(new.end().await?),
        replaced,
        "on the same instance too"
    );
    newest.report(vec![sample(1)], vec![]).await?;
    newest.acked(1).await?;
    assert_eq!(
        world
            .site
            .psql("SELECT presence, epoch FROM agent_state")
            .await?,
        "online|3"
    );
    let changes = "SELECT count(*) FROM agent_events WHERE kind = 'presence'";
    assert_eq!(
        world.site.psql(changes).await?,
        "1",
        "it was online all the time"
    );
    Ok(())
}

#[tokio::test]
async fn a_revocation_or_deletion_ends_the_stream_on_every_instance() -> anyhow::Result<()> {
    // The poll is far away: notifications carry it.
    let far =
        |builder: InstanceBuilder| builder.timing(|timing| timing.poll = Duration::from_secs(3600));
    let world = World::tuned(far).await?;
    let sibling = far(world.site.instance()).start().await?;
    let other = FakeAgent::on(machine(2))?;
    let jwt = other
        .jwt(sibling.grpc, &token(&world.site, AUTO).await?)
        .await?;
    let (mut here, mut there) = (world.beat().await?, other.beat(sibling.grpc, &jwt).await?);
    world
        .site
        .psql("SELECT revoke_agent(id, 'ann') FROM agents")
        .await?;
    for beat in [&mut here, &mut there] {
        assert_eq!(
            reason(beat.end().await?),
            (Code::PermissionDenied, "AGENT_REVOKED".to_owned())
        );
    }
    eventually("presence tells", async || {
        let offline =
            "SELECT count(*) FROM agent_state WHERE presence = 'offline' AND cause = 'refused'";
        world
            .site
            .psql(offline)
            .await
            .is_ok_and(|count| count == "2")
    })
    .await?;
    let refused = world
        .agent
        .beat_with(world.instance.grpc, &world.jwt, world.agent.hello())
        .await?;
    assert_eq!(refused.expect_err("revoked").reason, "AGENT_REVOKED");

    let third = FakeAgent::on(machine(3))?;
    let jwt = third
        .jwt(world.instance.grpc, &token(&world.site, AUTO).await?)
        .await?;
    let mut beat = third.beat(world.instance.grpc, &jwt).await?;
    world
        .site
        .psql("DELETE FROM agents WHERE status = 'active'")
        .await?;
    assert_eq!(beat.end().await?.expect("an end").code, Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn a_revocation_is_seen_by_the_poll_where_notifications_are_cut_off() -> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        let deaf = builder.set(
            "INGEST_LISTEN_DATABASE_URL",
            "postgres://svc@127.0.0.1:1/svc",
        );
        deaf.timing(|timing| timing.poll = Duration::from_millis(200))
    })
    .await?;
    let mut beat = world.beat().await?;
    world
        .site
        .psql("SELECT revoke_agent(id, 'ann') FROM agents")
        .await?;
    assert_eq!(reason(beat.end().await?).1, "AGENT_REVOKED");
    Ok(())
}

#[tokio::test]
async fn a_copy_on_another_machine_is_refused_and_the_original_never_notices() -> anyhow::Result<()>
{
    let world = World::new().await?;
    let mut original = world.beat().await?;
    let copy = FakeAgent {
        host: machine(2),
        ..world.agent.clone()
    };
    for _ in 0..3 {
        let refused = copy
            .beat_with(world.instance.grpc, &world.jwt, copy.hello())
            .await?
            .expect_err("a copy");
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::AlreadyExists, "IDENTITY_IN_USE")
        );
    }
    original.report(vec![sample(1)], vec![]).await?;
    original.acked(1).await?;
    let events = "SELECT count(*), min(reason) FROM agent_events WHERE kind = 'clone'";
    assert_eq!(
        world.site.psql(events).await?,
        "1|a copy of this identity was refused"
    );
    assert_eq!(world.site.psql("SELECT epoch FROM agent_state").await?, "1");
    Ok(())
}

#[tokio::test]
async fn a_reboot_takes_over_but_a_boot_that_comes_back_proves_a_copy() -> anyhow::Result<()> {
    let world = World::new().await?;
    let booted = |boot: &str| FakeAgent {
        host: HostFacts {
            boot_id: boot.into(),
            ..machine(1)
        },
        ..world.agent.clone()
    };
    let (first, second) = (booted("boot-a"), booted("boot-b"));
    let mut original = first.beat(world.instance.grpc, &world.jwt).await?;
    let mut copy = second.beat(world.instance.grpc, &world.jwt).await?;
    assert_eq!(
        reason(original.end().await?).1,
        "SESSION_REPLACED",
        "it looks like a reboot"
    );
    let mut back = first.beat(world.instance.grpc, &world.jwt).await?;
    assert_eq!(reason(copy.end().await?).1, "SESSION_REPLACED");
    let refused = second
        .beat_with(world.instance.grpc, &world.jwt, second.hello())
        .await?
        .expect_err("the copy");
    assert_eq!(refused.reason, "IDENTITY_IN_USE");
    back.report(vec![sample(1)], vec![]).await?;
    back.acked(1).await?;
    let third = booted("boot-c").beat(world.instance.grpc, &world.jwt).await;
    assert!(third.is_ok(), "a real reboot still takes over");
    Ok(())
}

#[tokio::test]
async fn a_jwt_is_renewed_over_the_stream() -> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| timing.renew_before = Duration::from_secs(24 * 3600 - 1))
    })
    .await?;
    let mut beat = world.beat().await?;
    let renewed = loop {
        match beat
            .hear()
            .await?
            .map_err(|refused| anyhow::anyhow!("{refused:?}"))?
        {
            Some(Hear::Credential(credential)) => break credential,
            Some(_) => {}
            None => anyhow::bail!("the stream ended"),
        }
    };
    assert_ne!(renewed.jwt, world.jwt);
    drop(beat);
    world.agent.beat(world.instance.grpc, &renewed.jwt).await?;
    Ok(())
}

#[tokio::test]
async fn a_silent_stream_is_ended_and_its_agent_offline() -> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| timing.heartbeat_interval = Duration::from_millis(100))
    })
    .await?;
    let mut beat = world.beat().await?;
    assert_eq!(reason(beat.end().await?).0, Code::DeadlineExceeded);
    world.presence_becomes("offline|lost").await
}

#[tokio::test]
async fn a_stopping_instance_gives_its_agents_a_slot_and_they_stay_online() -> anyhow::Result<()> {
    let world = World::tuned(|builder| builder.set("INGEST_DRAIN_TIMEOUT", "3s")).await?;
    let World {
        site,
        instance,
        agent,
        jwt,
    } = world;
    let sibling = site.instance().start().await?;
    let mut beat = agent.beat(instance.grpc, &jwt).await?;
    let stopping = instance.ask_to_stop();
    match beat.hear().await? {
        Ok(Some(Hear::Drain(drain))) => assert!(drain.reconnect_after.is_some()),
        other => anyhow::bail!("not a drain: {other:?}"),
    }
    let end = beat.end().await?.expect("an end");
    assert_eq!(
        (end.code, end.reason.as_str(), end.retry),
        (Code::Unavailable, "DRAINING", true)
    );
    stopping.ended().await?;
    let state =
        "SELECT presence, cause, online_until > now() + interval '20 seconds' FROM agent_state";
    assert_eq!(site.psql(state).await?, "online|drained|t");
    let _back = agent.beat(sibling.grpc, &jwt).await?;
    let state = "SELECT presence, cause, online_until IS NULL FROM agent_state";
    assert_eq!(site.psql(state).await?, "online|connected|t");
    assert_eq!(
        site.psql("SELECT count(*) FROM agent_events WHERE kind = 'presence'")
            .await?,
        "1"
    );
    Ok(())
}

#[tokio::test]
async fn the_agents_of_a_lost_instance_and_of_a_drain_that_never_returned_are_swept()
-> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| {
            timing.lease_renewal = Duration::from_millis(200);
            timing.heartbeat_interval = Duration::from_millis(100);
        })
    })
    .await?;
    drop(world.beat().await?);
    world.presence_becomes("offline|lost").await?;
    let lost = "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
                SELECT '00000000-0000-0000-0000-000000000001', kid, 'gone', '0', '', '', now() - interval '5 seconds'
                  FROM ingest_instances LIMIT 1;
                UPDATE agent_state SET presence = 'online', instance_id = '00000000-0000-0000-0000-000000000001'";
    world.site.psql(lost).await?;
    world.presence_becomes("offline|instance lost").await?;
    assert_eq!(
        world
            .site
            .psql("SELECT fenced FROM ingest_instances WHERE hostname = 'gone'")
            .await?,
        "t"
    );

    let drained =
        "UPDATE agent_state SET presence = 'online', cause = 'drained', online_until = now()";
    world.site.psql(drained).await?;
    world.presence_becomes("offline|lost").await
}

#[tokio::test]
async fn a_fenced_instance_takes_its_streams_over_under_a_new_id() -> anyhow::Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| timing.lease_renewal = Duration::from_millis(200))
    })
    .await?;
    let mut beat = world.beat().await?;
    let id = world
        .site
        .psql("SELECT instance_id FROM agent_state")
        .await?;
    let fence = format!(
        "UPDATE ingest_instances SET fenced = true;
         UPDATE agent_state SET presence = 'offline', cause = 'instance lost', instance_id = NULL WHERE instance_id = '{id}'"
    );
    world.site.psql(&fence).await?;
    world.presence_becomes("online|connected").await?;
    assert_ne!(
        world
            .site
            .psql("SELECT instance_id FROM agent_state")
            .await?,
        id
    );
    beat.report(vec![sample(1)], vec![]).await?;
    beat.acked(1).await?;
    Ok(())
}

#[tokio::test]
async fn a_clocks_skew_is_recorded() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut hello = world.agent.hello();
    hello.sent_at = hello.sent_at.map(|at| prost_types::Timestamp {
        seconds: at.seconds - 3600,
        ..at
    });
    world
        .agent
        .beat_with(world.instance.grpc, &world.jwt, hello)
        .await?
        .expect("welcome");
    let skew: i64 = world
        .site
        .psql("SELECT clock_skew_ms FROM agent_state")
        .await?
        .parse()?;
    assert!((-3_660_000..=-3_540_000).contains(&skew), "{skew}");
    Ok(())
}
