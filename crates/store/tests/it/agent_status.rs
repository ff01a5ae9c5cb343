//! The status transitions of an agent: the database's trigger against `AgentStatus`.

use anyhow::Result;
use svc_store::{AgentId, AgentStatus, Decision, RejectionKind};
use uuid::Uuid;

use crate::support::*;

const HOST: &str = "INSERT INTO hosts (id, hostname) VALUES (gen_random_uuid(), 'web-1')";

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
        let step = format!("UPDATE agents SET status = '{step}'");
        store.sql(&step).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_trigger_and_the_code_allow_the_same_transitions() -> Result<()> {
    let store = migrated().await?;
    store.sql(HOST).await?;
    for from in AgentStatus::ALL {
        for to in AgentStatus::ALL {
            agent_in(&store, from).await?;
            let update = format!("UPDATE agents SET status = '{}'", to.as_str());
            let outcome = store.sql(&update).await;
            let allowed = from.can_become(to) || from == to;
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
    let rejection = error.rejection().expect("an error of our functions");
    assert_eq!(rejection.kind, RejectionKind::NotFound);
    assert!(rejection.message.starts_with("there is no agent 00000000"));
    Ok(())
}
