//! The books: what the document's queries prove, tried on books that balance and on
//! books that were tampered with.

use anyhow::Result;
use svc_store::{GapKind, GapRow, SampleRow, Store};

use crate::document;
use crate::support::{batch, migrated, text};
use crate::telling::{DAY, Teller, after, hours_ago, sample, teller};

/// The agents that a query of the document complains about.
async fn complaints(store: &Store, query: &str) -> Result<String> {
    let sql = document::query(query);
    let sql = format!("SELECT string_agg(agent_id::text, ' ') FROM ({sql}) complaints");
    text(store, &sql).await
}

async fn gap(store: &Store, teller: &Teller, first_seq: i64, last_seq: i64) -> Result<()> {
    let (kind, reason) = (GapKind::Declared, "spool full".to_owned());
    let gap = GapRow {
        first_seq,
        last_seq,
        kind,
        reason: reason.into(),
    };
    store.samples_append(&[teller.range(&[], &[gap])]).await?;
    Ok(())
}

/// Agents with two days behind them, whose numbers are not in the order of their times.
async fn fleet(store: &Store) -> Result<[Teller; 3]> {
    store.samples_prepare(3 * DAY).await?;
    let tellers = [
        teller(store).await?,
        teller(store).await?,
        teller(store).await?,
    ];
    for teller in &tellers {
        let at = |seq: i64| after(hours_ago(48), (seq ^ 3) * 900_000);
        let told: Vec<SampleRow> = (1..=150).map(|seq| sample(seq, at(seq))).collect();
        store.samples_append(&[teller.range(&told, &[])]).await?;
        gap(store, teller, 151, 170).await?;
        let rest: Vec<SampleRow> = (171..=190).map(|seq| sample(seq, at(seq))).collect();
        store.samples_append(&[teller.range(&rest, &[])]).await?;
    }
    Ok(tellers)
}

#[tokio::test]
async fn the_documents_query_finds_a_sample_that_is_lost_or_there_twice_and_a_gap_that_is_gone()
-> Result<()> {
    let tampering = [
        "DELETE FROM host_metrics WHERE seq = 180 AND agent_id = '{agent}'",
        "INSERT INTO host_metrics SELECT * FROM host_metrics WHERE seq = 180 AND agent_id = '{agent}'",
        "UPDATE host_metrics SET seq = 181 WHERE seq = 180 AND agent_id = '{agent}'",
        "DELETE FROM metric_gaps WHERE agent_id = '{agent}'",
    ];
    for tampering in tampering {
        let (_database, store) = migrated().await?;
        let [_, bad, _] = fleet(&store).await?;
        assert_eq!(complaints(&store, "books-rows").await?, "");
        batch(
            &store,
            &tampering.replace("{agent}", &bad.agent.to_string()),
        )
        .await?;
        assert_eq!(
            complaints(&store, "books-rows").await?,
            bad.agent.to_string(),
            "{tampering}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_documents_query_finds_counters_that_do_not_add_up() -> Result<()> {
    let (_database, store) = migrated().await?;
    let [_, bad, _] = fleet(&store).await?;
    assert_eq!(complaints(&store, "books-counters").await?, "");
    let tampering = "UPDATE agent_state SET stored_count = stored_count + 1 WHERE agent_id = ";
    let tampering = format!("{tampering}'{}'", bad.agent);
    assert!(
        batch(&store, &tampering).await.is_err(),
        "a constraint forbids it"
    );
    batch(
        &store,
        "ALTER TABLE agent_state DROP CONSTRAINT agent_state_check",
    )
    .await?;
    batch(&store, &tampering).await?;
    assert_eq!(
        complaints(&store, "books-counters").await?,
        bad.agent.to_string()
    );
    Ok(())
}

/// What is dropped with its day is not missed.
#[tokio::test]
async fn books_balance_after_the_oldest_days_are_gone() -> Result<()> {
    let (_database, store) = migrated().await?;
    fleet(&store).await?;
    batch(
        &store,
        "DELETE FROM host_metrics WHERE sampled_at < now() - interval '36 hours'",
    )
    .await?;
    assert_eq!(complaints(&store, "books-rows").await?, "");
    Ok(())
}
