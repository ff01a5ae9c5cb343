//! Trust anchors: what is listed, who is counted as what, and what is refused.

use anyhow::{Context, Result};
use jiff::Timestamp;
use svc_store::{AgentId, NewAnchor, StoreError, TrustReport};

use crate::{fixtures::*, support::*};

async fn add(store: &TestStore, certificate: &[u8]) -> Result<String> {
    let anchor = NewAnchor {
        certificate,
        subject: "CN=test",
        not_after: Timestamp::now(),
    };
    store.trust_add(&anchor, "ann").await?;
    let hash = store.trust_anchors().await?.into_iter().next();
    Ok(hash.context("an anchor")?.hash)
}

fn text(error: StoreError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

async fn say(store: &TestStore, agent: AgentId, anchors: &[&String]) -> Result<()> {
    let report = TrustReport {
        anchors: anchors.iter().map(ToString::to_string).collect(),
        problem: String::new(),
    };
    Ok(store.trust_report(&[(agent, Some(report))]).await?)
}

/// Confirmed, locked out, unknown; the newest anchor first.
async fn figures(store: &TestStore) -> Result<Vec<(i64, i64, i64)>> {
    let anchors = store.trust_anchors().await?.into_iter();
    Ok(anchors
        .map(|anchor| (anchor.confirmed, anchor.locked_out, anchor.unknown))
        .collect())
}

#[tokio::test]
async fn each_active_agent_has_confirmed_an_anchor_is_locked_out_or_is_unknown() -> Result<()> {
    let store = migrated().await?;
    let agents = TestAgent::many(&store, 5).await?;
    let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
    assert_eq!(store.trust_list(0).await?, None);
    let (old, elsewhere) = (add(&store, b"old").await?, "0f".repeat(32));
    let new = add(&store, b"new").await?;
    say(&store, ids[0], &[&old, &new]).await?;
    say(&store, ids[1], &[&old]).await?;
    say(&store, ids[2], &[&elsewhere]).await?;
    say(&store, ids[3], &[]).await?;
    assert_eq!(figures(&store).await?, [(1, 2, 2), (2, 1, 2)]);
    let out = store.trust_locked_out(&new, 1).await?;
    assert!(out.rows.len() == 1 && out.truncated, "{out:?}");
    let out = store.trust_locked_out(&old, 9).await?.rows;
    let out: Vec<AgentId> = out.iter().map(|agent| agent.agent_id).collect();
    assert_eq!(out, [ids[2]]);
    let mut behind = store.trust_behind(&ids).await?;
    behind.sort();
    let mut expected = vec![ids[1], ids[2], ids[3]];
    expected.sort();
    assert_eq!(behind, expected, "all that say something but the first");

    // An agent that says nothing any more is unknown, and one that is revoked is none.
    store.trust_report(&[(ids[0], None)]).await?;
    let revoke = format!(
        "UPDATE agents SET status = 'revoked' WHERE id = '{}'",
        ids[2]
    );
    store.sql(&revoke).await?;
    assert_eq!(figures(&store).await?, [(0, 1, 3), (1, 0, 3)]);
    let version = "SELECT string_agg(xmin::text, ',' ORDER BY agent_id) FROM agent_trust";
    let before = store.sql(version).await?;
    say(&store, ids[1], &[&old]).await?;
    assert_eq!(store.sql(version).await?, before, "nothing new, no write");
    Ok(())
}

#[tokio::test]
async fn an_anchor_is_retired_only_when_agents_trust_another_or_by_force() -> Result<()> {
    let (store, agent) = world().await?;
    let old = add(&store, b"old").await?;
    say(&store, agent.id, &[&old]).await?;
    let refused = store.trust_retire(&old, false, "ann").await;
    let refused = text(refused.expect_err("the last one"));
    assert!(
        refused.contains("trust no other listed anchor: 1"),
        "{refused}"
    );
    let new = add(&store, b"new").await?;
    assert!(store.trust_retire(&old, false, "ann").await.is_err());
    say(&store, agent.id, &[&old, &new]).await?;
    let known = store.trust_list(0).await?.context("a list")?;
    assert_eq!(known.certificates, [b"new", b"old"]);
    assert_eq!(store.trust_list(known.version).await?, None);
    assert!(store.trust_behind(&[agent.id]).await?.is_empty());

    store.trust_retire(&old, false, "ann").await?;
    let list = store.trust_list(known.version).await?.context("a list")?;
    assert_eq!(
        (list.certificates, list.retired),
        (vec![b"new".to_vec()], vec![old.clone()])
    );
    assert_eq!(store.trust_behind(&[agent.id]).await?, [agent.id]);
    assert!(
        store.trust_retire(&old, false, "ann").await.is_err(),
        "twice"
    );
    assert!(
        store.trust_retire(&new, false, "ann").await.is_err(),
        "the last one"
    );
    store.trust_retire(&new, true, "ben").await?;
    // It comes back as it was.
    add(&store, b"old").await?;
    let list = store.trust_list(list.version).await?.context("a list")?;
    assert_eq!(
        (list.certificates, list.retired),
        (vec![b"old".to_vec()], vec![new])
    );
    let events = "SELECT string_agg(kind || ' by ' || actor, ', ' ORDER BY id) FROM people_events";
    let (added, retired) = ("trust anchor added by ann", "trust anchor retired by");
    let expected = format!("{added}, {added}, {retired} ann, {retired} ben, {added}");
    assert_eq!(store.sql(events).await?, expected);
    Ok(())
}

#[tokio::test]
async fn at_most_eight_anchors_are_in_use_and_none_is_larger_than_agents_take() -> Result<()> {
    let store = migrated().await?;
    for number in 0..8 {
        add(&store, &[number]).await?;
    }
    add(&store, &[0]).await?;
    let refused = add(&store, &[8]).await.expect_err("a ninth");
    let refused = format!("{refused:#}");
    assert!(refused.contains("8 trust anchors"), "{refused}");
    let anchors = store.trust_anchors().await?;
    store.trust_retire(&anchors[0].hash, false, "ann").await?;
    assert!(add(&store, &[8; 8193]).await.is_err());
    add(&store, &[8; 8192]).await?;
    assert_eq!(
        store
            .trust_list(0)
            .await?
            .context("a list")?
            .certificates
            .len(),
        8
    );
    Ok(())
}
