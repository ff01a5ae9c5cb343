//! What autovacuum does with tables that every heartbeat changes.

use anyhow::Result;

use crate::support::*;

const ROWS: &str = "
    INSERT INTO hosts (hostname) SELECT 'h' || n FROM generate_series(1, 1000) n;
    INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM hosts;
    CREATE TABLE ordinary AS SELECT n FROM generate_series(1, 1000) n;";

const CHANGES: &str = "
    UPDATE agent_state SET heard_at = now();
    UPDATE host_vitals SET vitals_at = now();
    UPDATE ordinary SET n = n + 1;";

/// How often the tables that every heartbeat changes were analysed.
const ANALYSES: &str = "SELECT sum(autoanalyze_count) FROM pg_stat_user_tables WHERE relname IN ('agent_state', 'host_vitals')";

/// Changes every row, and waits until the ordinary table is analysed.
async fn change_all(store: &TestStore) -> Result<()> {
    let ordinary = "SELECT autoanalyze_count FROM pg_stat_user_tables WHERE relname = 'ordinary'";
    let before: u64 = store.sql(ordinary).await?.parse()?;
    store.sql(CHANGES).await?;
    let again = format!("SELECT ({ordinary}) > {before}");
    store.becomes(&again, "t").await
}

#[tokio::test]
async fn tables_that_every_heartbeat_changes_are_analysed_seldom() -> Result<()> {
    let settings = [("autovacuum", "on"), ("autovacuum_naptime", "1s")];
    let (_server, store) = own_server(&settings).await?;
    store.sql(ROWS).await?;
    store.sql("ANALYZE").await?;
    change_all(&store).await?; // Until then the rows themselves may have been analysed.
    let before = store.sql(ANALYSES).await?;
    for _ in 0..2 {
        change_all(&store).await?;
    }
    assert_eq!(store.sql(ANALYSES).await?, before);
    Ok(())
}
