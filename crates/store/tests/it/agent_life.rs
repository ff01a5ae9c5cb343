//! An agent's life: the trigger in the database against the rules in the code.

use anyhow::Result;
use svc_store::{AgentStatus, Store};

use crate::support::{batch, migrated, text};

const HOST: &str = "INSERT INTO hosts (id, hostname) VALUES (gen_random_uuid(), 'web-1')";

/// Brings a new agent into `status`, by ways that are allowed.
async fn agent_in(store: &Store, status: AgentStatus) -> Result<()> {
    let path: &[&str] = match status {
        AgentStatus::Pending => &[],
        AgentStatus::Active => &["active"],
        AgentStatus::Rejected => &["rejected"],
        AgentStatus::Revoked => &["active", "revoked"],
    };
    let born = "DELETE FROM agents;
                INSERT INTO agents (host_id, key, status) SELECT id, sha256('k'), 'pending' FROM hosts";
    batch(store, born).await?;
    for step in path {
        batch(store, &format!("UPDATE agents SET status = '{step}'")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_trigger_and_the_code_agree_on_all_transitions() -> Result<()> {
    let (_database, store) = migrated().await?;
    batch(&store, HOST).await?;
    for from in AgentStatus::ALL {
        for to in AgentStatus::ALL {
            agent_in(&store, from).await?;
            let update = format!("UPDATE agents SET status = '{}'", to.as_str());
            let outcome = batch(&store, &update).await;
            let allowed = from.can_become(to) || from == to;
            assert_eq!(outcome.is_ok(), allowed, "{from:?} to {to:?}");
            let expected = if allowed { to } else { from };
            let status = text(&store, "SELECT status FROM agents").await?;
            assert_eq!(status, expected.as_str(), "{from:?} to {to:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_begins_as_pending_or_active() -> Result<()> {
    let (_database, store) = migrated().await?;
    batch(&store, HOST).await?;
    for status in AgentStatus::ALL {
        let insert = format!(
            "DELETE FROM agents; INSERT INTO agents (host_id, key, status) SELECT id, sha256('k'), '{}' FROM hosts",
            status.as_str()
        );
        let begins = matches!(status, AgentStatus::Pending | AgentStatus::Active);
        assert_eq!(batch(&store, &insert).await.is_ok(), begins, "{status:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_refusal_of_our_own_carries_its_words() -> Result<()> {
    let (_database, store) = migrated().await?;
    let nobody = svc_store::AgentId(uuid::Uuid::nil());
    let decision = svc_store::Decision::Reject;
    let error = store
        .agent_decide(nobody, decision, "ann", None)
        .await
        .unwrap_err();
    let refusal = error.refusal().expect("a rule of ours");
    assert_eq!(refusal.kind, svc_store::RefusalKind::NotFound);
    assert!(refusal.message.starts_with("there is no agent 00000000"));
    Ok(())
}
