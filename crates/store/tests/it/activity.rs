//! The list of what happened, when most of it is not asked for.

use anyhow::Result;
use svc_store::ActivityFilter;

use crate::support::*;

/// Changes of presence, newer than three decisions.
const EVENTS: &str = "
    INSERT INTO agent_events (agent_id, kind, to_status, actor)
    SELECT gen_random_uuid(), 'status', 'active', 'ann' FROM generate_series(1, 3);
    INSERT INTO agent_events (agent_id, kind, to_status)
    SELECT gen_random_uuid(), 'presence', 'online' FROM generate_series(1, 50000);
    ANALYZE agent_events";

#[tokio::test]
async fn a_page_of_the_activity_reads_a_bounded_number_of_events_and_says_how_far_it_looked()
-> Result<()> {
    let store = migrated().await?;
    store.console_migrate().await?;
    store.sql(EVENTS).await?;
    let reader = TestStore::open(store.url(), 3)?;
    let decisions = ActivityFilter::default();
    let first = reader.console_activity(&decisions, None, 100).await?;
    assert!(first.rows.is_empty() && first.searched_to.is_some());
    // The connections report what they read when they end.
    drop(reader);
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'agent_events'";
    store
        .becomes(&format!("SELECT ({read}) >= 10000"), "t")
        .await?;
    let rows: i64 = store.sql(read).await?.parse()?;
    // Of 50,003 rows, and each twice at most.
    assert!(rows <= 20_100, "{rows} rows were read");
    let (mut next, mut found) = (first.next, 0);
    for page in 2.. {
        let older = store
            .console_activity(&decisions, next.as_ref(), 100)
            .await?;
        found += older.rows.len();
        assert_eq!(older.next.is_none(), older.searched_to.is_none(), "{page}");
        next = older.next;
        if next.is_none() {
            assert_eq!((page, found), (6, 3));
            break;
        }
    }
    let all = ActivityFilter {
        presence: true,
        ..decisions
    };
    let full = store.console_activity(&all, None, 100).await?;
    assert_eq!((full.rows.len(), full.searched_to), (100, None));
    Ok(())
}
