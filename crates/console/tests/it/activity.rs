//! What happened, page by page and as a file.

use anyhow::{Context, Result};
use svc_store::Role;

use crate::support::Console;

/// A decision, and many newer changes of presence.
const EVENTS: &str = "
    INSERT INTO agent_events (agent_id, kind, to_status, actor, reason)
    VALUES (gen_random_uuid(), 'status', 'active', 'zoe', 'rack 7');
    INSERT INTO agent_events (agent_id, kind, to_status)
    SELECT gen_random_uuid(), 'presence', 'online' FROM generate_series(1, 12000)";

#[tokio::test]
async fn a_bounded_search_says_how_far_it_looked_and_goes_on_from_there() -> Result<()> {
    let console = Console::start().await?;
    console.site.psql(EVENTS).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let newest = client.get("/activity?actor=zoe").await?;
    newest.shows(&["Nothing found", "have been searched"]);
    assert!(!newest.has("rack 7"));
    let link = newest.link("rel=\"next\"").context("no link")?;
    let older = client.get(&link).await?;
    older.shows(&["rack 7"]);
    assert!(!older.has("have been searched"), "{older:?}");
    let file = client.get("/activity/export?actor=zoe&format=csv").await?;
    let lines: Vec<&str> = file.body.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("time,kind") && lines[1].contains("rack 7"));
    Ok(())
}
