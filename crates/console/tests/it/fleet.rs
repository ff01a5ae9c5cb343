//! The page of the fleet: what needs attention, and how full the service is.

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{ActiveAgent, eventually};

use crate::support::Console;

#[tokio::test]
async fn the_capacity_meter_says_how_many_more_agents_fit() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let agent = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let _stream = agent.heartbeat().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    eventually("the instance has published its load", async || {
        let page = client.get("/").await;
        page.is_ok_and(|page| page.has("more agents fit") && page.has("1 of "))
    })
    .await?;
    let page = client.get("/").await?;
    page.shows(&[
        "<dt>Agents</dt>",
        "<dt>Processors</dt>",
        "<dt>Memory</dt>",
        "<dt>Queue</dt>",
        "<dt>Database connections</dt>",
    ]);
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_expires_needs_attention() -> Result<()> {
    let console = Console::start().await?;
    let instance = "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at, load)
        VALUES (gen_random_uuid(), 'k', 'h', 'v', 'g', 'w', now() + interval '1 hour',
                jsonb_build_object('certificate_expires_at', to_char(now() + interval '20 days 6 hours', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')))";
    console.site.psql(instance).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    eventually("the page names it", async || {
        let page = client.get("/").await;
        page.is_ok_and(|page| page.has("certificate expires within 21 days"))
    })
    .await?;
    let page = client.get("/service").await?;
    page.shows(&["Certificate expires", "in 20 d"]);
    Ok(())
}
