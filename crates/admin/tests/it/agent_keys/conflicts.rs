//! The same machine, or the same identity, comes a second time while the incumbent changes its key.

use anyhow::{Context, Result, ensure};
use svc_proto::v1::AgentStatus::{Pending, Revoked};
use svc_testkit::{AUTO, ActiveAgent, FakeAgent, assert_contains, is_active, machine, token};
use tonic::Code;

use super::{Announced, CHANGES, EVIDENCE, KEYS, fingerprint};
use crate::commands::output_of;

#[tokio::test(flavor = "multi_thread")]
async fn a_next_key_is_promoted_during_a_conflict_which_still_waits_for_a_person() -> Result<()> {
    let world = Announced::new().await?;
    let (site, address) = (&world.site, world.old.address);
    let secret = token(site, AUTO).await?;
    let newcomer = FakeAgent::on(machine(1))?;
    let conflict = newcomer.register(address, &secret).await?;
    ensure!(conflict.status() == Pending, "{conflict:?}");
    let seen = "SELECT agent_seen(a, a.conflict_with) FROM agents a WHERE status = 'pending'";
    let seen = site.psql(seen).await?;

    let mut live = world.next.heartbeat().await?;
    drop(world.call);
    live.report_acked(1..=2).await?;
    site.expect(CHANGES, "1").await?;
    let keys = format!("SELECT {KEYS} FROM agents a WHERE status = 'active'");
    let promoted = format!("{}|0|1", fingerprint(&world.next)?);
    site.expect(&keys, &promoted).await?;
    let open = "SELECT pending_reason, conflict_with FROM agents WHERE status = 'pending'";
    let with_incumbent = format!("conflict|{}", world.old.id);
    site.expect(open, &with_incumbent).await?;
    for secret in ["", secret.as_str()] {
        let again = newcomer.register(address, secret).await?;
        ensure!(again.status() == Pending && again.agent_id == conflict.agent_id);
        assert_contains(&again.message, &world.old.id);
    }
    let shown = output_of(site, &["agent", "show", &conflict.agent_id]).await?;
    assert_contains(&shown, &world.old.id);
    site.expect(EVIDENCE, "0").await?;

    // What the person saw before the promotion is still what there is to decide.
    let replace = format!(
        "SELECT approve_agent('{}', 'ann', 'replace', NULL, '{seen}')",
        conflict.agent_id
    );
    let mut waiting = newcomer.pending(address, "").await?;
    site.psql(&replace).await?;
    ensure!(is_active(&waiting.answer().await?));
    let end = live.end().await?.context("it ended with OK")?;
    end.assert(Code::PermissionDenied, "AGENT_REVOKED");
    let refused = world.next.refused_heartbeat().await?;
    refused.assert(Code::PermissionDenied, "AGENT_REVOKED");
    let answer = world.next.agent.register(address, &secret).await?;
    ensure!(answer.status() == Revoked && answer.agent_id == world.old.id);
    let refused = world.old.refused_heartbeat().await?;
    refused.assert(Code::Unauthenticated, "RETIRED_KEY");
    let all =
        "SELECT string_agg(status, ',' ORDER BY status), (SELECT count(*) FROM hosts) FROM agents";
    site.expect(all, "active,revoked|1").await
}

/// The copy has both keys, as a disk has between the announcement and the first use.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_with_a_next_key_neither_promotes_it_nor_disturbs_the_incumbent() -> Result<()> {
    let mut world = Announced::new().await?;
    let site = &world.site;
    let there = world.instances[1].grpc;
    for (seq, key) in [(1, &world.next), (2, &world.old)] {
        let copy = ActiveAgent {
            address: there,
            ..key.copied_to(machine(2))
        };
        world.call.report_acked(seq..=seq).await?;
        let refused = copy.refused_heartbeat().await?;
        refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
        let refused = copy.agent.refused(there, "").await?;
        refused.assert(Code::AlreadyExists, "IDENTITY_IN_USE");
    }
    site.expect(CHANGES, "0").await?;
    let untouched = format!("SELECT {KEYS} FROM agents a");
    let present = format!("{}|1|0", fingerprint(&world.old)?);
    site.expect(&untouched, &present).await?;

    // Over either key it may register a key of its own, and names its origin.
    for (number, key) in [(7, &world.next), (8, &world.old)] {
        let copy = key.copied_to(machine(2)).agent;
        let mut request = copy.request("");
        request.successor_key = vec![number; 32];
        let answer = copy.send(there, request).await??.answer().await?;
        ensure!(answer.status() == Pending, "{answer:?}");
    }
    let clones = format!(
        "SELECT count(*) FROM agents WHERE status = 'pending' AND pending_reason = 'clone' AND cloned_from = '{}'",
        world.old.id
    );
    site.expect(&clones, "2").await?;
    site.expect(CHANGES, "0").await?;

    world.call.report_acked(3..=3).await?;
    let mut live = world.next.heartbeat_in_time(there).await?;
    ensure!(live.welcome.acked_seq == 3);
    site.expect(CHANGES, "1").await?;
    live.report_acked(4..=4).await
}
