//! What autovacuum does with tables that every heartbeat changes.

use anyhow::Result;
use svc_sandbox::eventually;

use crate::support::{PATIENCE, TestStore, own_server};

const ROWS: &str = "
    INSERT INTO hosts (hostname) SELECT 'h' || n FROM generate_series(1, 1000) n;
    INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM hosts;
    CREATE TABLE ordinary AS SELECT n FROM generate_series(1, 1000) n;";

const CHANGES: &str = "
    UPDATE agent_state SET heard_at = now();
    UPDATE host_vitals SET vitals_at = now();
    UPDATE ordinary SET n = n + 1;";

/// How often these tables were analysed, in all.
async fn analyses(store: &TestStore, tables: &str) -> Result<u64> {
    let sql = format!(
        "SELECT sum(autoanalyze_count) FROM pg_stat_user_tables WHERE relname IN ({tables})"
    );
    Ok(store.sql(&sql).await?.parse()?)
}

/// Changes every row, and waits until the ordinary table is analysed.
async fn change_all(store: &TestStore) -> Result<()> {
    let before = analyses(store, "'ordinary'").await?;
    store.sql(CHANGES).await?;
    eventually("the ordinary table is analysed", PATIENCE, async || {
        let now = analyses(store, "'ordinary'").await;
        now.is_ok_and(|now| now > before)
    })
    .await
}

#[tokio::test]
async fn tables_that_every_heartbeat_changes_are_analysed_seldom() -> Result<()> {
    const HEARTBEAT: &str = "'agent_state', 'host_vitals'";
    let settings = [("autovacuum", "on"), ("autovacuum_naptime", "1s")];
    let (_server, store) = own_server(&settings).await?;
    store.sql(ROWS).await?;
    store.sql("ANALYZE").await?;
    change_all(&store).await?; // Until then the rows themselves may have been analysed.
    let before = analyses(&store, HEARTBEAT).await?;
    for _ in 0..2 {
        change_all(&store).await?;
    }
    assert_eq!(analyses(&store, HEARTBEAT).await?, before);
    Ok(())
}
