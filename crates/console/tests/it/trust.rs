//! The page of trust anchors: what it counts, whom it names, and that nobody changes anything there.

use anyhow::Result;
use svc_store::Role;

use crate::support::{Console, seed_hosts, seed_trust};

#[tokio::test]
async fn the_page_names_who_would_be_locked_out_and_changes_nothing() -> Result<()> {
    let (console, client) = Console::signed_in_as("vic", Role::Viewer).await?;
    client.get("/trust").await?.shows(&["No anchors yet"]);
    seed_hosts(&console.site, 6).await?;
    seed_trust(&console.site).await?;
    let agents = "SELECT count(*) FROM agents WHERE status = 'active'";
    console.site.expect(agents, "6").await?;
    let page = client.get("/trust").await?;
    page.shows(&[
        "CN=new authority",
        "CN=old authority",
        "retired",
        "locked out by switching to CN=new authority now: 2",
        "web-001</a>",
        ">off</td>",
        "svc-ingest trust add FILE",
    ]);
    assert!(!page.has("web-000") && !page.has("web-002"), "{page:?}");
    let agent =
        "SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE hostname = 'web-001'";
    let agent = console.site.psql(agent).await?;
    assert!(page.has(&format!("/agents/{agent}")));
    let shown = client.get(&format!("/agents/{agent}")).await?;
    shown.shows(&["<dt>Trusts</dt>", "<br>off"]);
    let admin = console.signed_in("ann", Role::Admin).await?;
    assert!(!admin.get("/trust").await?.has("action=\"/trust"));
    assert_eq!(admin.submit("/trust", &[("hash", "new")]).await?, 405);
    client
        .get("/activity")
        .await?
        .shows(&["trust anchor added", "trust anchor retired"]);
    assert_eq!(console.client().get("/trust").await?.status, 303);
    Ok(())
}
