//! A host's record follows the agents that are admitted, and no others.

use anyhow::Result;
use svc_proto::v1::{AgentStatus::Pending, HostFacts};
use svc_testkit::{ActiveAgent, FakeAgent, REINSTALL, is_active, machine, token};

use super::World;
use crate::commands::json;

/// Facts, labels and the number of identifiers of all hosts.
const HOSTS: &str = "SELECT hostname, os_version, labels,
                            (SELECT count(*) FROM host_identifiers WHERE host_id = h.id)
                       FROM hosts h ORDER BY created_at";
const BEFORE: &str = r#"web-1|12|{"env": "test"}|2"#;
/// A reinstalled system keeps its hardware UUID and has a new machine id.
const AFTER: &str = r#"reinstalled|13|{"env": "prod", "rack": "4"}|3"#;

/// Machine 1 after a reinstallation.
fn reinstalled() -> HostFacts {
    HostFacts {
        hostname: "reinstalled".into(),
        os_version: "13".into(),
        machine_id: "fedcba9876543210fedcba9876543210".into(),
        ..machine(1)
    }
}

/// A token for reinstallations with labels of its own.
async fn labelled_token(world: &World) -> Result<String> {
    let secret = token(&world.site, REINSTALL).await?;
    let label = r#"UPDATE enrolment_tokens SET labels = '{"env": "prod", "rack": "4"}' WHERE allow_reinstall"#;
    world.site.psql(label).await?;
    Ok(secret)
}

#[tokio::test]
async fn a_conflict_that_waits_changes_nothing_of_the_host() -> Result<()> {
    let world = World::new().await?;
    let secret = labelled_token(&world).await?;
    let (_, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(reinstalled())?;
    for given in [secret.as_str(), &secret, ""] {
        let answer = newcomer.register(world.instance.grpc, given).await?;
        assert_eq!(answer.status(), Pending);
        world.site.expect(HOSTS, BEFORE).await?;
    }
    let listed = json(&world.site, &["agent", "list", "--label", "rack=4"]).await?;
    assert_eq!(listed[0]["hostname"], "reinstalled", "by its own labels");
    let uses = "SELECT uses FROM enrolment_tokens WHERE allow_reinstall";
    world.site.expect(uses, "1").await
}

#[tokio::test]
async fn an_approved_replacement_gives_the_host_its_facts_identifiers_and_labels() -> Result<()> {
    let world = World::new().await?;
    let secret = labelled_token(&world).await?;
    let (_, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(reinstalled())?;
    let second = newcomer.register(world.instance.grpc, &secret).await?;
    let replace = "approve_agent('ann', 'replace')";
    world.decide(&second, replace).await?;
    world.site.expect(HOSTS, AFTER).await
}

#[tokio::test]
async fn an_admitted_reinstallation_gives_the_host_its_facts_and_spends_one_use() -> Result<()> {
    let world = World::new().await?;
    let secret = labelled_token(&world).await?;
    let (_, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(reinstalled())?;
    let mut waiting = newcomer.pending(world.instance.grpc, &secret).await?;
    world.presence(&first, "offline", "11 minutes").await?;
    // Admitted by this call or by the maintenance, whichever comes first.
    let again = newcomer.register(world.instance.grpc, &secret).await?;
    assert!(is_active(&again));
    assert!(is_active(&waiting.answer().await?));
    world.site.expect(HOSTS, AFTER).await?;
    let uses = "SELECT uses FROM enrolment_tokens WHERE allow_reinstall";
    world.site.expect(uses, "1").await
}

#[tokio::test]
async fn a_conflict_approved_as_a_new_host_brings_its_labels_there() -> Result<()> {
    let world = World::new().await?;
    let secret = labelled_token(&world).await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    world.presence(&first, "online", "1 hour").await?;
    let newcomer = FakeAgent::on(reinstalled())?;
    let second = newcomer.register(world.instance.grpc, &secret).await?;
    let new_host = "approve_agent('ann', 'new-host')";
    world.decide(&second, new_host).await?;
    let after = AFTER.replace("|3", "|2");
    let both = format!("{BEFORE}\n{after}");
    world.site.expect(HOSTS, &both).await?;
    assert!(is_active(&world.register(&incumbent).await?));
    let (_, third) = world.install(machine(1)).await?;
    assert_eq!(third.status(), Pending, "a third copy of the image");
    Ok(())
}

/// Never an active agent on a retired host.
const STRAY: &str = "SELECT count(*) FROM agents a JOIN hosts h ON h.id = a.host_id
                      WHERE a.status = 'active' AND h.retired_at IS NOT NULL";

#[tokio::test]
async fn approving_an_agent_of_a_retired_host_returns_the_host_to_service() -> Result<()> {
    let world = World::new().await?;
    let (agent, first) = world.install(machine(1)).await?;
    let retire = format!("SELECT retire_host('{}', 'ann')", first.host_id);
    world.site.psql(&retire).await?;
    world.decide(&first, "reopen_agent('ann')").await?;
    let retired = "SELECT retired_at IS NOT NULL FROM hosts";
    world.site.expect(retired, "t").await?;
    world.decide(&first, "approve_agent('ann')").await?;
    world.site.expect(retired, "f").await?;
    world.site.expect(STRAY, "0").await?;
    let returned = "SELECT count(*) FROM agent_events WHERE kind = 'host returned'";
    world.site.expect(returned, "1").await?;

    let answer = world.register(&agent).await?;
    assert!(is_active(&answer));
    assert_eq!(answer.host_id, first.host_id);
    let (id, address) = (answer.agent_id, world.instance.grpc);
    let jwt = answer.credential.expect("a JWT").jwt;
    let active = ActiveAgent {
        agent,
        id,
        jwt,
        address,
    };
    active.heartbeat().await?.report_acked(1..=1).await?;
    let (_, reinstalled) = world.install(machine(1)).await?;
    assert_eq!(reinstalled.host_id, first.host_id, "it is matched again");
    Ok(())
}

/// The retirement commits while a registration that has found the host is under way.
#[tokio::test]
async fn a_machine_that_registers_while_its_host_is_retired_gets_a_new_host() -> Result<()> {
    let world = World::new().await?;
    let (_, first) = world.install(machine(1)).await?;
    world.decide(&first, "revoke_agent('ann')").await?;
    let retire = format!(
        "BEGIN; SELECT retire_host('{}', 'ann'); SELECT pg_sleep(1); COMMIT",
        first.host_id
    );
    let url = world.site.database_url();
    let retiring = tokio::spawn(async move { svc_sandbox::query(&url, &retire).await });
    world.site.sleeps().await?;
    let (_, second) = world.install(machine(1)).await?;
    retiring.await??;
    assert!(is_active(&second));
    assert_ne!(second.host_id, first.host_id);
    world.site.expect(STRAY, "0").await
}
