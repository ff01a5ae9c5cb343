//! The audit queries of docs/data-model.md, on books that balance and on books that were
//! tampered with.

use anyhow::Result;
use svc_store::{GapKind, SampleRow};

use crate::{document, fixtures::*, support::*};

/// The agents that a query of the document reports after a change, which is undone.
async fn reported(store: &TestStore, query: &str, change: &str) -> Result<String> {
    let query = document::query(query);
    let sql = format!(
        "BEGIN; {change}; SELECT string_agg(agent_id::text, ' ') FROM ({query}) reported; ROLLBACK"
    );
    store.sql(&sql).await
}

/// Agents with two days of history, whose numbers are not in the order of their times. Returns one.
async fn fleet(store: &TestStore) -> Result<String> {
    store.partitions_create(3 * DAY).await?;
    let agents = TestAgent::many(store, 3).await?;
    for agent in &agents {
        let at = |seq: i64| after(hours_ago(48), (seq ^ 3) * 900_000);
        let samples: Vec<SampleRow> = (1..=190).map(|seq| sample(seq, at(seq))).collect();
        agent.store(store, &samples[..150]).await?;
        let gap = gap(151..=170, GapKind::Declared);
        store.samples_append(&[agent.range(&[], &[gap])]).await?;
        agent.store(store, &samples[170..]).await?;
    }
    Ok(agents[1].id.to_string())
}

#[tokio::test]
async fn the_documented_query_finds_lost_and_duplicate_samples_and_lost_gaps() -> Result<()> {
    let store = migrated().await?;
    let bad = fleet(&store).await?;
    let retention = "DELETE FROM samples_open WHERE sampled_at < now() - interval '36 hours'";
    for change in ["", retention] {
        assert_eq!(reported(&store, "books-rows", change).await?, "");
    }
    let row = format!(
        "seq = 180 AND agent_no = (SELECT agent_no FROM agent_numbers WHERE agent_id = '{bad}')"
    );
    for change in [
        format!("DELETE FROM samples_open WHERE {row}"),
        format!("INSERT INTO samples_open SELECT * FROM samples_open WHERE {row}"),
        format!("UPDATE samples_open SET seq = 181 WHERE {row}"),
        format!("DELETE FROM metric_gaps WHERE agent_id = '{bad}'"),
    ] {
        let found = reported(&store, "books-rows", &change).await?;
        assert_eq!(found, bad, "{change}");
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_query_finds_counters_that_do_not_add_up() -> Result<()> {
    let store = migrated().await?;
    let bad = fleet(&store).await?;
    assert_eq!(reported(&store, "books-counters", "").await?, "");
    let change =
        format!("UPDATE agent_state SET stored_count = stored_count + 1 WHERE agent_id = '{bad}'");
    let outcome = store.sql(&change).await;
    assert!(outcome.is_err(), "the constraint is missing");
    let change = format!("ALTER TABLE agent_state DROP CONSTRAINT agent_state_check; {change}");
    assert_eq!(reported(&store, "books-counters", &change).await?, bad);
    Ok(())
}
