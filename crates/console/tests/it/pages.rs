//! What single pages show: plots of a host, what needs attention, how full the service is, what happened, and what is missing.

use anyhow::{Context, Result};
use serde_json::Value;
use svc_store::Role;
use svc_testkit::{ActiveAgent, PATIENCE, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::support::{Console, disk, seed_hosts, seed_samples};

#[tokio::test]
async fn gaps_are_null_with_their_reason_and_rollups_serve_long_ranges() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    // Without the samples of 10 minutes, which the agent declared lost.
    seed_samples(&console.site, "web-000", 120, &[40..=60], |sample| {
        sample.cpu_percent = 50.0;
        sample.memory_total_bytes = 2 << 30;
        sample.uptime_seconds = sample.seq;
        sample.network_rx_bytes = 3000 * sample.seq;
        sample.network_tx_bytes = 300 * sample.seq;
        sample.disks = vec![disk("/", 42_000)];
    })
    .await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let series = async |range: &str| -> Result<Value> {
        let path = format!("/hosts/{id}/series?range={range}");
        let body = client.get(&path).await?.body;
        serde_json::from_str(&body).context(body)
    };
    let hour = series("1h").await?;
    assert_eq!(hour["source"], "every sample");
    assert_eq!(hour["gaps"][0]["reason"], "declared: the spool was full");
    let column = |name: &str| hour[name].as_array().unwrap();
    let missing = column("cpu").iter().filter(|value| value.is_null());
    assert_eq!(missing.count(), 1, "one null breaks the line");
    assert_eq!(hour["rx"][1], 100.0);
    assert_eq!(hour["disks"]["/"][0], 42.0);
    for name in ["cpu", "load", "memory", "rx", "tx"] {
        assert_eq!(column(name).len(), column("t").len(), "{name}");
    }
    let week = series("7d").await?;
    assert_eq!(week["source"], "hourly means");
    assert_eq!(week["cpu"][0], 50.0);
    assert_eq!(series("1y").await?["source"], "daily means");
    let unknown = format!("/hosts/{}/series?range=1h", uuid::Uuid::nil());
    assert_eq!(client.status(&unknown).await?, 404);
    Ok(())
}

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

const MANY: &str = "
    INSERT INTO console.events (at, actor, kind, subject, detail)
    SELECT now() - n * interval '1 ms', 'zoe', 'user added', 'x', '' FROM generate_series(1, 201000) AS n";

#[tokio::test]
async fn an_export_goes_to_the_end_or_says_that_it_was_interrupted() -> Result<()> {
    let mut console = Console::start().await?;
    console.site.psql(MANY).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let path = "/activity/export?actor=zoe&format=csv";
    let whole = client.get(path).await?;
    assert_eq!(whole.body.lines().count(), 201_001);
    // What nobody reads is not sent, so this one is still at its beginning when the console stops.
    let mut stream = client.begin(&format!("GET {path}"), "").await?;
    stream.write_all(b"\r\n").await?;
    let mut begun = [0; 1024];
    stream.read_exact(&mut begun).await?;
    let mut rest = Vec::new();
    let (stopped, read) = tokio::join!(
        console.stop(),
        timeout(PATIENCE, stream.read_to_end(&mut rest))
    );
    stopped?;
    read??;
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.lines().count() < 201_000);
    assert!(rest.contains("interrupted,\"The console stops.\""));
    Ok(())
}

/// A malformed id, and one that nothing has, lead to the same page.
#[tokio::test]
async fn an_id_that_is_none_is_not_found_like_one_that_nothing_has() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let unknown = "a0000000-0000-4000-8000-000000000001";
    for (pages, words) in [
        ("/hosts", "Look for it by its name in the list of hosts"),
        ("/agents", "The page of its host lists every agent"),
        ("/tokens", "The list of tokens has all of them"),
    ] {
        let missing = client.get(&format!("{pages}/{unknown}")).await?;
        assert_eq!(missing.status, 404);
        missing.shows(&[words]);
        for malformed in ["web-042", "a0000000", "%00", "..%2f.."] {
            let page = client.get(&format!("{pages}/{malformed}")).await?;
            assert_eq!(page.status, 404, "{malformed}");
            assert_eq!(page.body, missing.body, "{malformed}");
        }
    }
    for path in [
        "/hosts/x/note",
        "/hosts/x/retire",
        "/agents/x/decide",
        "/tokens/x/revoke",
    ] {
        let form = [("note", "a"), ("decision", "revoke"), ("reason", "a")];
        assert_eq!(client.submit(path, &form).await?, 404, "{path}");
    }
    let stranger = console.client().status("/hosts/x").await?;
    assert_eq!(stranger, 303, "nobody is signed in");
    Ok(())
}
