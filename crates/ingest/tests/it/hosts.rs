//! Which machine is which: every rule of host deduplication, through the port.

use std::time::Duration;

use svc_ingest::peer::ClientKey;
use svc_proto::v1::{AgentStatus, HostFacts, RegisterResponse};
use svc_sandbox::Identity;
use tonic::Code;

use crate::{
    agents::{AUTO, FakeAgent, MANUAL, REINSTALL, Refused, is_active, machine, token},
    harness::{Instance, Site, eventually},
};

struct World {
    site: Site,
    instance: Instance,
    auto: String,
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let site = Site::new().await?;
        let tuned = site.instance().timing(|timing| {
            timing.poll = Duration::from_millis(200);
            timing.reinstall_quiet = Duration::from_secs(600);
        });
        let instance = tuned.start().await?;
        let auto = token(&site, AUTO).await?;
        Ok(Self {
            site,
            instance,
            auto,
        })
    }

    /// A new key on a machine with these facts.
    async fn install(&self, host: HostFacts) -> anyhow::Result<(FakeAgent, RegisterResponse)> {
        let agent = FakeAgent::on(host)?;
        let answer = agent.register(self.instance.grpc, &self.auto).await?;
        Ok((agent, answer))
    }

    async fn revoke(&self, answer: &RegisterResponse) -> anyhow::Result<()> {
        self.site
            .psql(&format!(
                "SELECT revoke_agent('{}', 'ann')",
                answer.agent_id
            ))
            .await?;
        Ok(())
    }

    async fn presence(
        &self,
        answer: &RegisterResponse,
        presence: &str,
        since: &str,
    ) -> anyhow::Result<()> {
        let sql = format!(
            "UPDATE agent_state SET presence = '{presence}', presence_since = now() - interval '{since}'
              WHERE agent_id = '{}'",
            answer.agent_id
        );
        self.site.psql(&sql).await?;
        Ok(())
    }

    async fn hosts(&self) -> anyhow::Result<String> {
        self.site.psql("SELECT count(*) FROM hosts").await
    }
}

#[tokio::test]
async fn a_reinstalled_machine_keeps_its_host_record() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (_, first) = world.install(machine(1)).await?;
    world.revoke(&first).await?;
    let (_, second) = world.install(machine(1)).await?;
    assert!(is_active(&second));
    assert_eq!(second.host_id, first.host_id);
    assert_ne!(second.agent_id, first.agent_id);
    assert_eq!(world.hosts().await?, "1");
    Ok(())
}

#[tokio::test]
async fn a_new_key_on_a_machine_with_an_active_agent_waits_for_a_person() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    let (newcomer, second) = world
        .install(HostFacts {
            hostname: "liar".into(),
            ..machine(1)
        })
        .await?;
    assert_eq!(
        second.status(),
        AgentStatus::Pending,
        "whatever its token says"
    );
    assert!(
        second.message.contains("--replace") && second.message.contains(&first.agent_id),
        "{}",
        second.message
    );
    assert_eq!(
        world.site.psql("SELECT hostname FROM hosts").await?,
        "web-1",
        "it writes nothing on the host"
    );
    assert!(
        is_active(&incumbent.register(world.instance.grpc, "").await?),
        "the incumbent notices nothing"
    );
    let asked = format!("SELECT approve_agent('{}', 'ann')", second.agent_id);
    let error = world
        .site
        .psql(&asked)
        .await
        .expect_err("it must be said what is meant");
    assert!(format!("{error:#}").contains("active agent"), "{error:#}");
    assert_eq!(
        newcomer.register(world.instance.grpc, "").await?.status(),
        AgentStatus::Pending
    );
    Ok(())
}

#[tokio::test]
async fn a_conflict_approved_as_replacement_takes_the_hosts_record_over() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    let (newcomer, second) = world.install(machine(1)).await?;
    world
        .site
        .psql(&format!(
            "SELECT approve_agent('{}', 'ann', 'replace')",
            second.agent_id
        ))
        .await?;
    assert_eq!(
        incumbent.register(world.instance.grpc, "").await?.status(),
        AgentStatus::Revoked
    );
    let now = newcomer.register(world.instance.grpc, "").await?;
    assert!(is_active(&now));
    assert_eq!(now.host_id, first.host_id);
    let reason = format!(
        "SELECT decision_reason FROM agents WHERE id = '{}'",
        first.agent_id
    );
    assert_eq!(
        world.site.psql(&reason).await?,
        format!("superseded by {}", second.agent_id)
    );
    Ok(())
}

#[tokio::test]
async fn a_conflict_approved_as_a_new_host_leaves_the_incumbent_alone() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    let clone = HostFacts {
        hostname: "clone-1".into(),
        ..machine(1)
    };
    let (newcomer, second) = world.install(clone).await?;
    world
        .site
        .psql(&format!(
            "SELECT approve_agent('{}', 'ann', 'new-host')",
            second.agent_id
        ))
        .await?;
    let now = newcomer.register(world.instance.grpc, "").await?;
    assert!(is_active(&now));
    assert_ne!(now.host_id, first.host_id);
    assert!(is_active(
        &incumbent.register(world.instance.grpc, "").await?
    ));
    assert_eq!(
        world
            .site
            .psql("SELECT string_agg(hostname, ',' ORDER BY created_at) FROM hosts")
            .await?,
        "web-1,clone-1"
    );
    let (_, third) = world.install(machine(1)).await?;
    assert_eq!(
        third.status(),
        AgentStatus::Pending,
        "a third of the same image waits too"
    );
    Ok(())
}

#[tokio::test]
async fn an_agent_first_run_without_root_and_then_with_it_is_one_host() -> anyhow::Result<()> {
    let world = World::new().await?;
    let without_root = HostFacts {
        hardware_uuid: String::new(),
        ..machine(1)
    };
    let (agent, first) = world.install(without_root).await?;
    let with_root = FakeAgent {
        host: machine(1),
        ..agent
    };
    assert_eq!(
        with_root.register(world.instance.grpc, "").await?.host_id,
        first.host_id
    );
    world.revoke(&first).await?;
    let only_hardware = HostFacts {
        machine_id: String::new(),
        ..machine(1)
    };
    let (_, again) = world.install(only_hardware).await?;
    assert_eq!(
        again.host_id, first.host_id,
        "it is known by the identifier that appeared later"
    );
    Ok(())
}

#[tokio::test]
async fn clones_of_a_disk_in_different_hardware_are_different_hosts() -> anyhow::Result<()> {
    let world = World::new().await?;
    let cloned = HostFacts {
        machine_id: machine(1).machine_id,
        ..machine(2)
    };
    let (_, first) = world.install(machine(1)).await?;
    let (_, second) = world.install(cloned).await?;
    assert!(is_active(&second));
    assert_ne!(second.host_id, first.host_id);
    Ok(())
}

#[tokio::test]
async fn junk_identifiers_bring_no_two_machines_together() -> anyhow::Result<()> {
    let world = World::new().await?;
    for number in 1..=3 {
        let host = HostFacts {
            hardware_uuid: "03000200-0400-0500-0006-000700080009".into(),
            machine_id: "0".repeat(32),
            mac_addresses: vec!["02:42:ac:11:00:02".into()],
            hostname: "localhost".into(),
            ..machine(number)
        };
        assert!(is_active(&world.install(host).await?.1));
    }
    assert_eq!(world.hosts().await?, "3");
    Ok(())
}

#[tokio::test]
async fn a_host_is_known_by_name_and_universal_mac_where_nothing_stronger_is_there()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let weak = |mac: &str| HostFacts {
        hardware_uuid: String::new(),
        machine_id: String::new(),
        mac_addresses: vec!["02:42:ac:11:00:02".into(), mac.into()],
        ..machine(1)
    };
    let (_, first) = world.install(weak("00:1b:21:aa:bb:cc")).await?;
    let (_, same) = world.install(weak("00-1B-21-AA-BB-CC")).await?;
    let (_, other) = world.install(weak("00:1b:21:aa:bb:cd")).await?;
    assert_eq!(same.status(), AgentStatus::Pending);
    assert_eq!(same.host_id, first.host_id);
    assert_ne!(other.host_id, first.host_id);
    Ok(())
}

#[tokio::test]
async fn facts_over_a_known_key_refresh_the_host_and_never_move_the_agent() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (agent, first) = world.install(machine(1)).await?;
    let (_, other) = world.install(machine(2)).await?;
    let moved = FakeAgent {
        host: HostFacts {
            os_version: "13".into(),
            ..machine(2)
        },
        ..agent
    };
    let answer = moved.register(world.instance.grpc, "").await?;
    assert_eq!(answer.host_id, first.host_id);
    assert_ne!(answer.host_id, other.host_id);
    let row = format!(
        "SELECT hostname, os_version FROM hosts WHERE id = '{}'",
        first.host_id
    );
    assert_eq!(world.site.psql(&row).await?, "web-2|13");
    Ok(())
}

#[tokio::test]
async fn a_reinstall_token_replaces_an_agent_only_after_its_quiet_time() -> anyhow::Result<()> {
    let world = World::new().await?;
    let reinstall = token(&world.site, REINSTALL).await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(machine(1))?;
    let mut stream = newcomer.open(world.instance.grpc, &reinstall).await??;
    assert_eq!(
        stream.answer().await?.status(),
        AgentStatus::Pending,
        "the incumbent is online"
    );
    world.presence(&first, "offline", "11 minutes").await?;
    assert!(
        is_active(&stream.answer().await?),
        "looked at again when the time has come"
    );
    assert_eq!(
        incumbent.register(world.instance.grpc, "").await?.status(),
        AgentStatus::Revoked
    );

    let (_, second) = world.install(machine(2)).await?;
    world.presence(&second, "offline", "11 minutes").await?;
    let at_once = FakeAgent::on(machine(2))?
        .register(world.instance.grpc, &reinstall)
        .await?;
    assert!(is_active(&at_once));
    assert_eq!(at_once.host_id, second.host_id);
    let (_, third) = world.install(machine(2)).await?;
    assert_eq!(
        third.status(),
        AgentStatus::Pending,
        "a token that does not allow it"
    );
    Ok(())
}

#[tokio::test]
async fn replicas_with_a_reinstall_token_do_not_evict_one_another() -> anyhow::Result<()> {
    let world = World::new().await?;
    let reinstall = token(&world.site, REINSTALL).await?;
    let (_, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    for _ in 0..4 {
        FakeAgent::on(machine(1))?
            .register(world.instance.grpc, &reinstall)
            .await?;
    }
    world.presence(&first, "offline", "11 minutes").await?;
    let statuses = "SELECT string_agg(status, ',' ORDER BY created_at) FROM agents";
    eventually("one of them was admitted", async || {
        world
            .site
            .psql(statuses)
            .await
            .is_ok_and(|statuses| statuses.starts_with("revoked"))
    })
    .await?;
    // Several polls later it is still the same one.
    let polls = "SELECT count(*) FROM agents WHERE status = 'active'";
    for _ in 0..5 {
        FakeAgent::on(machine(9))?
            .refused(world.instance.grpc, "x")
            .await?;
        assert_eq!(world.site.psql(polls).await?, "1");
    }
    assert_eq!(
        world
            .site
            .psql("SELECT count(*) FROM agents WHERE status = 'revoked'")
            .await?,
        "1"
    );
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_live_elsewhere_is_refused_and_its_clone_finds_a_place_of_its_own()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let (original, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 minute").await?;
    let clone = FakeAgent {
        host: machine(2),
        ..original.clone()
    };
    let refused = clone.refused(world.instance.grpc, "").await?;
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::AlreadyExists, "IDENTITY_IN_USE")
    );
    assert!(
        is_active(&original.register(world.instance.grpc, "").await?),
        "the incumbent is untouched"
    );

    let successor = FakeAgent::on(machine(2))?;
    let mut request = clone.request("");
    request.successor_key = key_of(&successor.identity)?.to_vec();
    for _ in 0..2 {
        let mut stream = clone.send(world.instance.grpc, request.clone()).await??;
        let place = stream.answer().await?;
        assert_eq!(place.status(), AgentStatus::Pending);
        assert!(!is_active(&place));
        assert_eq!(
            stream.next().await?,
            None,
            "the decision is for the new key's own connection"
        );
    }
    let row = "SELECT pending_reason, cloned_from, (SELECT count(*) FROM hosts) FROM agents WHERE status = 'pending'";
    assert_eq!(
        world.site.psql(row).await?,
        format!("clone|{}|2", first.agent_id)
    );

    let mut stream = successor.open(world.instance.grpc, "").await??;
    let waiting = stream.answer().await?;
    assert_eq!(waiting.status(), AgentStatus::Pending);
    world
        .site
        .psql(&format!(
            "SELECT approve_agent('{}', 'ann')",
            waiting.agent_id
        ))
        .await?;
    assert!(is_active(&stream.answer().await?));
    Ok(())
}

#[tokio::test]
async fn at_most_ten_clones_of_one_agent_wait_and_a_stranger_can_ask_for_none() -> anyhow::Result<()>
{
    let world = World::new().await?;
    let (original, _) = world.install(machine(1)).await?;
    let mut client = original.connect(world.instance.grpc).await?;
    let mut refused = None;
    for number in 0..12_u8 {
        let mut request = original.request("");
        request.host = Some(machine(100 + u32::from(number)));
        request.successor_key = vec![number; 32];
        match client.register(request).await {
            Ok(_) => {}
            Err(status) => refused = Some(Refused::of(&status)),
        }
        // The key's own rate limit is not what is tested here.
        tokio::time::sleep(Duration::from_millis(if number > 7 { 1100 } else { 0 })).await;
    }
    let refused = refused.expect("the eleventh is refused");
    assert_eq!(
        (refused.code, refused.reason.as_str(), refused.retry),
        (Code::ResourceExhausted, "RATE_LIMITED", true)
    );
    assert_eq!(
        world
            .site
            .psql("SELECT count(*) FROM agents WHERE cloned_from IS NOT NULL")
            .await?,
        "10"
    );

    let stranger = FakeAgent::on(machine(50))?;
    let mut request = stranger.request(&world.auto);
    request.successor_key = vec![77; 32];
    let status = stranger
        .send(world.instance.grpc, request)
        .await?
        .expect_err("no agent of that key");
    assert_eq!(Refused::of(&status).code, Code::InvalidArgument);
    Ok(())
}

#[tokio::test]
async fn a_retired_host_that_comes_back_is_a_new_one() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (agent, first) = world.install(machine(1)).await?;
    world
        .site
        .psql(&format!("SELECT retire_host('{}', 'ann')", first.host_id))
        .await?;
    assert_eq!(
        agent.register(world.instance.grpc, "").await?.status(),
        AgentStatus::Revoked
    );
    let (_, second) = world.install(machine(1)).await?;
    assert!(is_active(&second));
    assert_ne!(second.host_id, first.host_id);
    Ok(())
}

#[tokio::test]
async fn two_waiting_keys_of_one_machine_cannot_both_be_approved_unseen() -> anyhow::Result<()> {
    let world = World::new().await?;
    let manual = token(&world.site, MANUAL).await?;
    for _ in 0..2 {
        FakeAgent::on(machine(1))?
            .register(world.instance.grpc, &manual)
            .await?;
    }
    let apart = "SELECT approve_agent(id, 'ann', 'new-host') FROM agents LIMIT 1";
    let refused = world.site.psql(apart).await;
    refused.expect_err("nobody is active on its host yet");
    let approve = "SELECT approve_agent(id, 'ann') FROM agents WHERE status = 'pending' LIMIT 1";
    world.site.psql(approve).await?;
    world
        .site
        .psql(approve)
        .await
        .expect_err("the machine has an active agent now");
    let plain = "UPDATE agents SET status = 'active' WHERE status = 'pending'";
    world
        .site
        .psql(plain)
        .await
        .expect_err("not by plain SQL either");
    Ok(())
}

fn key_of(identity: &Identity) -> anyhow::Result<[u8; 32]> {
    Ok(ClientKey::of(&identity.cert_der.clone().into())?.0)
}
