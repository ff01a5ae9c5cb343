//! Streams that an instance holds and that the database does not have as it does.

use std::time::Duration;

use anyhow::{Context, Result};
use svc_testkit::{eventually, runs_again, transactions};

use super::{PRESENCE, World, refusal};

async fn world() -> Result<World> {
    World::tuned(|builder| builder.timing(|timing| timing.poll = Duration::from_millis(100))).await
}

/// Waits until the comparison finds no difference any more.
pub(super) async fn only_digests_are_read(world: &World) -> Result<()> {
    let mut counts = (0, 0);
    eventually("ten polls in a row read only the digest", async || {
        let Ok(found) = transactions(&[world.instance.http]).await else {
            return false;
        };
        let count = |name| found.get(name).copied().unwrap_or_default();
        let (digests, read) = (count("sessions_digest"), count("sessions_stored"));
        if read != counts.1 {
            counts = (digests, read);
        }
        digests >= counts.0 + 10
    })
    .await
}

#[tokio::test]
async fn a_stream_that_is_not_stored_as_it_is_held_is_claimed_again() -> Result<()> {
    let world = world().await?;
    let mut call = world.agent.heartbeat().await?;
    let stored = "SELECT presence, cause, epoch, instance_id, online_until FROM agent_state";
    let before = world.site.psql(stored).await?;
    for (seq, wrong) in (1..).zip([
        "presence = 'offline', cause = 'lost', instance_id = NULL",
        "cause = 'drained', instance_id = NULL, online_until = now() + interval '1 hour'",
        "instance_id = gen_random_uuid()",
    ]) {
        let sql = format!("UPDATE agent_state SET {wrong}");
        world.site.psql(&sql).await?;
        world.site.becomes(stored, &before).await.context(wrong)?;
        call.report_acked(seq..=seq).await?;
    }
    only_digests_are_read(&world).await?;
    let events = "SELECT to_status, reason FROM agent_events WHERE kind = 'presence' ORDER BY at";
    let expected = "online|connected\nonline|connected";
    world.site.expect(events, expected).await
}

/// A standby that took over has forgotten an open, and the epoch was given out a second time.
#[tokio::test]
async fn a_stream_whose_epoch_a_live_sibling_has_is_replaced() -> Result<()> {
    let world = world().await?;
    let sibling = world.site.instance().start().await?;
    let mut call = world.agent.heartbeat().await?;
    let moved = format!(
        "UPDATE agent_state SET instance_id = (SELECT id FROM ingest_instances WHERE grpc_address = '{}')",
        sibling.grpc
    );
    world.site.psql(&moved).await?;
    assert_eq!(refusal(&mut call).await?.reason, "SESSION_REPLACED");
    let mut back = world.agent.heartbeat().await?;
    back.report_acked(1..=1).await?;
    world.site.expect(PRESENCE, "online|connected").await
}

/// A fenced instance has no lease that could expire, so nobody would take its agents offline.
#[tokio::test]
async fn a_fenced_instance_claims_no_stream() -> Result<()> {
    let world = World::tuned(|builder| {
        builder.timing(|timing| {
            timing.poll = Duration::from_millis(100);
            timing.lease_renewal = Duration::from_hours(1);
            timing.lease_ttl = Duration::from_hours(3);
        })
    })
    .await?;
    let _call = world.agent.heartbeat().await?;
    let fence = "UPDATE ingest_instances SET fenced = true;
                 UPDATE agent_state SET presence = 'offline', cause = 'instance lost', instance_id = NULL";
    world.site.psql(fence).await?;
    runs_again(world.instance.http, "sessions_reclaim", 3).await?;
    world.site.expect(PRESENCE, "offline|instance lost").await
}
