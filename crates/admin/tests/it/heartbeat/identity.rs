//! One identity on two machines: a clone, or a machine that failed over.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{
    ABSENT, ActiveAgent, PATIENCE, RefusedCall, SAME_KEY, absent_instance, is_active, machine,
    runs_again,
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{PRESENCE, World};
use crate::commands::{json, output_of};

const PRESUMED: &str = "IDENTITY_PRESUMED_IN_USE";
const IDENTIFIERS: &str =
    "SELECT string_agg(concat(kind, ' ', right(value, 2)), ', ' ORDER BY kind, value)
                             FROM host_identifiers";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'machine changed'";

async fn world() -> Result<World> {
    World::tuned(|builder| {
        builder.timing(|timing| {
            timing.poll = Duration::from_millis(200);
            timing.lease_renewal = Duration::from_millis(500);
        })
    })
    .await
}

async fn several_polls(world: &World) -> Result<()> {
    runs_again(world.instance.http, "sessions_digest", 5).await
}

/// The stream was opened an hour ago.
async fn age(world: &World) -> Result<()> {
    let aged = "UPDATE agent_state SET connected_at = now() - interval '1 hour'";
    world.site.psql(aged).await.map(drop)
}

/// Both calls refuse the identity with a retry delay.
async fn assert_presumed(other: &ActiveAgent) -> Result<()> {
    let stream = other.refused_heartbeat().await?;
    stream.assert_with_delay(Code::Unavailable, PRESUMED);
    let registration = other.agent.refused(other.address, "").await?;
    registration.assert_with_delay(Code::Unavailable, PRESUMED);
    Ok(())
}

/// A failed-over machine has the disk, hence the key, and other hardware.
async fn assert_fails_over(world: &World, other: &ActiveAgent) -> Result<()> {
    assert_presumed(other).await?;
    let gone = "UPDATE agent_state SET presence = 'offline', cause = 'lost', instance_id = NULL, online_until = NULL";
    world.site.psql(gone).await?;
    other.heartbeat().await?.report_acked(1..=1).await?;
    let identity = "SELECT count(*), count(*) FILTER (WHERE status = 'active') FROM agents";
    world.site.expect(identity, "1|1").await?;
    world.site.expect(CHANGES, "1").await
}

#[tokio::test]
async fn a_machine_that_fails_over_while_its_agent_is_drained_keeps_its_identity() -> Result<()> {
    let world = world().await?;
    drop(world.agent.heartbeat().await?);
    world.site.becomes(PRESENCE, "offline|lost").await?;
    // As an outage of the database leaves it.
    let drained = "UPDATE agent_state SET presence = 'online', cause = 'drained', online_until = now() + interval '10 minutes'";
    world.site.psql(drained).await?;
    assert_fails_over(&world, &world.agent.copied_to(machine(2))).await
}

#[tokio::test]
async fn a_machine_that_fails_over_after_its_instance_was_lost_keeps_its_identity() -> Result<()> {
    let world = world().await?;
    drop(world.agent.heartbeat().await?);
    world.site.becomes(PRESENCE, "offline|lost").await?;
    let lost = absent_instance(SAME_KEY, "-5 seconds");
    let online = "UPDATE agent_state SET presence = 'online', cause = 'connected'";
    let sql = format!("{lost}; {online}, instance_id = '{ABSENT}'");
    world.site.psql(&sql).await?;
    assert_fails_over(&world, &world.agent.copied_to(machine(2))).await
}

/// Its machine has lost power, and its instance has not noticed yet.
#[tokio::test]
async fn a_machine_that_fails_over_while_its_old_stream_is_silent_keeps_its_identity() -> Result<()>
{
    let world = world().await?;
    let silent = world.agent.heartbeat().await?;
    age(&world).await?;
    let other = world.agent.copied_to(machine(2));
    assert_presumed(&other).await?;
    several_polls(&world).await?;
    assert_presumed(&other).await?;
    drop(silent);
    world.site.becomes(PRESENCE, "offline|lost").await?;
    other.heartbeat().await?.report_acked(1..=1).await
}

#[tokio::test]
async fn a_clone_is_refused_as_one_as_soon_as_the_original_is_heard() -> Result<()> {
    let world = world().await?;
    let mut original = world.agent.heartbeat().await?;
    age(&world).await?;
    let clone = world.agent.copied_to(machine(2));
    original.report_acked(1..=1).await?;
    assert_presumed(&clone).await?;
    several_polls(&world).await?;
    // A message from before proves nothing: its machine may have failed over since.
    assert_presumed(&clone).await?;
    let in_use = |refused: &RefusedCall| refused.code == Code::AlreadyExists;
    let deadline = Instant::now() + PATIENCE;
    // Slower than the rate limit of registrations, which is another rule.
    let mut seq = 1;
    while !in_use(&clone.agent.refused(clone.address, "").await?) {
        ensure!(Instant::now() < deadline, "the clone is not recognised");
        seq += 1;
        original.report_acked(seq..=seq).await?;
        sleep(Duration::from_millis(1100)).await;
    }
    let stream = clone.refused_heartbeat().await?;
    stream.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    original.report_acked(seq + 1..=seq + 1).await?;
    world.site.expect(CHANGES, "0").await
}

/// The copy of a template that is powered off, over either call.
#[tokio::test]
async fn a_copy_that_comes_first_is_recorded_and_its_identifiers_are_not_merged() -> Result<()> {
    let world = world().await?;
    let (template, site) = (&world.agent, &world.site);
    site.expect(IDENTIFIERS, "hardware 02, machine 01").await?;
    let (second, third) = (
        template.copied_to(machine(2)),
        template.copied_to(machine(3)),
    );
    assert!(is_active(&second.agent.register(second.address, "").await?));
    site.expect(IDENTIFIERS, "hardware 03, machine 02").await?;
    let later = "UPDATE agents SET machine_changed_at = now() - interval '1 hour'";
    site.psql(later).await?;
    let mut live = third.heartbeat().await?;
    site.expect(IDENTIFIERS, "hardware 04, machine 03").await?;
    site.expect(CHANGES, "2").await?;

    let shown = json(site, &["agent", "show", &template.id]).await?;
    ensure!(shown["machine_changed_at"].is_string(), "{shown}");
    let table = output_of(site, &["agent", "show", &template.id]).await?;
    for expected in ["machine changed", "4c4c4544004235108054000000000004"] {
        ensure!(table.contains(expected), "{table}");
    }
    // The template itself is the copy now.
    let refused = template.refused_heartbeat().await?;
    refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    live.report_acked(1..=1).await
}

#[tokio::test]
async fn a_change_of_capabilities_alone_is_recorded() -> Result<()> {
    let world = world().await?;
    let agent = &world.agent;
    drop(agent.heartbeat().await?);
    let mut hello = agent.agent.hello();
    let info = hello.agent.as_mut().expect("a version");
    info.capabilities = vec!["later".into()];
    let opened = agent.agent.try_heartbeat(agent.address, &agent.jwt, hello);
    ensure!(opened.await?.is_ok(), "refused");
    let capabilities = "SELECT capabilities FROM agents";
    world.site.expect(capabilities, "{later}").await
}
