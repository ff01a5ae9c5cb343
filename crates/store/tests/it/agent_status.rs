//! The status transitions of an agent, which the trigger `agents_guard` allows.

use anyhow::Result;
use svc_store::{AgentId, AgentStatus, Decision, RejectionKind};
use uuid::Uuid;

use crate::support::{TestStore, migrated};

const HOST: &str = "INSERT INTO hosts (id, hostname) VALUES (gen_random_uuid(), 'web-1')";

/// The transitions in the first diagram of docs/life-cycles.md, which shows the rule to people.
fn drawn() -> Vec<(AgentStatus, AgentStatus)> {
    let document = include_str!("../../../../docs/life-cycles.md");
    let diagram = document.split("```").nth(1).unwrap_or_default();
    let arrows = diagram.lines().filter_map(|line| {
        let (from, to) = line.split_once(" --> ")?;
        let (to, _) = to.split_once(':')?;
        Some((AgentStatus::parse(from.trim())?, AgentStatus::parse(to)?))
    });
    arrows.collect()
}

/// Replaces all agents by a new one with this first status.
async fn insert(store: &TestStore, status: AgentStatus) -> Result<String> {
    let sql = "DELETE FROM agents;
               INSERT INTO agents (host_id, key, status) SELECT id, sha256('k'), '{}' FROM hosts";
    store.sql(&sql.replace("{}", status.as_str())).await
}

/// Brings a new agent into `status` by allowed transitions.
async fn agent_in(store: &TestStore, status: AgentStatus) -> Result<()> {
    let path: &[&str] = match status {
        AgentStatus::Pending => &[],
        AgentStatus::Active => &["active"],
        AgentStatus::Rejected => &["rejected"],
        AgentStatus::Revoked => &["active", "revoked"],
    };
    insert(store, AgentStatus::Pending).await?;
    for step in path {
        store
            .sql(&format!("UPDATE agents SET status = '{step}'"))
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_transitions_are_allowed_and_no_others() -> Result<()> {
    let drawn = drawn();
    assert_eq!(drawn.len(), 5, "{drawn:?}");
    let store = migrated().await?;
    store.sql(HOST).await?;
    for from in AgentStatus::ALL {
        for to in AgentStatus::ALL {
            agent_in(&store, from).await?;
            let update = format!("UPDATE agents SET status = '{}'", to.as_str());
            let outcome = store.sql(&update).await;
            let allowed = drawn.contains(&(from, to)) || from == to;
            assert_eq!(outcome.is_ok(), allowed, "{from:?} to {to:?}");
            let expected = if allowed { to } else { from };
            let status = store.sql("SELECT status FROM agents").await?;
            assert_eq!(status, expected.as_str(), "{from:?} to {to:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_agent_is_pending_or_active() -> Result<()> {
    let store = migrated().await?;
    store.sql(HOST).await?;
    for status in AgentStatus::ALL {
        let allowed = matches!(status, AgentStatus::Pending | AgentStatus::Active);
        let outcome = insert(&store, status).await;
        assert_eq!(outcome.is_ok(), allowed, "{status:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_rejected_decision_carries_its_kind_and_message() -> Result<()> {
    let store = migrated().await?;
    let unknown = AgentId(Uuid::nil());
    let outcome = store.agent_decide(unknown, Decision::Reject, "ann", None);
    let error = outcome.await.unwrap_err();
    let rejection = error
        .rejection()
        .expect("an error of our own SQL functions");
    assert_eq!(rejection.kind, RejectionKind::NotFound);
    assert!(rejection.message.starts_with("there is no agent 00000000"));
    Ok(())
}
