//! The audit queries of docs/data-model.md, on books that balance and on books that were
//! tampered with.

use anyhow::Result;
use svc_store::{GapKind, GapRow, SampleRow};

use crate::{
    document,
    fixtures::{DAY, TestAgent, after, hours_ago, sample},
    support::{TestStore, migrated},
};

/// The agents that a query of the document reports.
async fn reported(store: &TestStore, query: &str) -> Result<String> {
    let sql = document::query(query);
    let sql = format!("SELECT string_agg(agent_id::text, ' ') FROM ({sql}) reported");
    store.sql(&sql).await
}

/// Agents with two days of history, whose numbers are not in the order of their times.
async fn fleet(store: &TestStore) -> Result<Vec<TestAgent>> {
    store.partitions_create(3 * DAY).await?;
    let agents = TestAgent::many(store, 3).await?;
    for agent in &agents {
        let at = |seq: i64| after(hours_ago(48), (seq ^ 3) * 900_000);
        let samples: Vec<SampleRow> = (1..=190).map(|seq| sample(seq, at(seq))).collect();
        agent.store(store, &samples[..150]).await?;
        let gap = GapRow {
            first_seq: 151,
            last_seq: 170,
            kind: GapKind::Declared,
            reason: "spool full".into(),
        };
        store.samples_append(&[agent.range(&[], &[gap])]).await?;
        agent.store(store, &samples[170..]).await?;
    }
    Ok(agents)
}

#[tokio::test]
async fn the_documented_query_finds_lost_and_duplicate_samples_and_lost_gaps() -> Result<()> {
    let tampering = [
        "DELETE FROM samples_open WHERE seq = 180 AND agent_no = (SELECT agent_no FROM agent_numbers WHERE agent_id = '{agent}')",
        "INSERT INTO samples_open SELECT * FROM samples_open WHERE seq = 180 AND agent_no = (SELECT agent_no FROM agent_numbers WHERE agent_id = '{agent}')",
        "UPDATE samples_open SET seq = 181 WHERE seq = 180 AND agent_no = (SELECT agent_no FROM agent_numbers WHERE agent_id = '{agent}')",
        "DELETE FROM metric_gaps WHERE agent_id = '{agent}'",
    ];
    for tampering in tampering {
        let store = migrated().await?;
        let bad = fleet(&store).await?[1];
        assert_eq!(reported(&store, "books-rows").await?, "");
        let bad = bad.id.to_string();
        store.sql(&tampering.replace("{agent}", &bad)).await?;
        assert_eq!(reported(&store, "books-rows").await?, bad, "{tampering}");
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_query_finds_counters_that_do_not_add_up() -> Result<()> {
    let store = migrated().await?;
    let bad = fleet(&store).await?[1];
    assert_eq!(reported(&store, "books-counters").await?, "");
    let tampering = "UPDATE agent_state SET stored_count = stored_count + 1 WHERE agent_id = ";
    let tampering = format!("{tampering}'{}'", bad.id);
    let outcome = store.sql(&tampering).await;
    assert!(outcome.is_err(), "the constraint is missing");
    let drop = "ALTER TABLE agent_state DROP CONSTRAINT agent_state_check";
    store.sql(drop).await?;
    store.sql(&tampering).await?;
    let found = reported(&store, "books-counters").await?;
    assert_eq!(found, bad.id.to_string());
    Ok(())
}

#[tokio::test]
async fn books_balance_after_retention_drops_the_oldest_days() -> Result<()> {
    let store = migrated().await?;
    fleet(&store).await?;
    let drop = "DELETE FROM samples_open WHERE sampled_at < now() - interval '36 hours'";
    store.sql(drop).await?;
    assert_eq!(reported(&store, "books-rows").await?, "");
    Ok(())
}
