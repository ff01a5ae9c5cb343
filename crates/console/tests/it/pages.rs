//! What single pages show: plots of a host, what needs attention, how full the service is, what happened, and what is missing.

use anyhow::{Context, Result};
use serde_json::Value;
use svc_store::Role;
use svc_testkit::{ActiveAgent, PATIENCE, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::support::{Console, disk, seed_hosts, seed_pictures, seed_rollups, seed_samples};

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

/// The host was off 30 to 21 hours ago, and has been silent for the last 8.
#[tokio::test]
async fn gaps_of_long_ranges_have_their_reason_and_a_host_that_stopped_has_one_at_the_end()
-> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    seed_rollups(&console.site, "web-000", 9..=20).await?;
    seed_rollups(&console.site, "web-000", 31..=40).await?;
    let presence = "INSERT INTO agent_events (at, agent_id, kind, from_status, to_status, reason)
        SELECT now() - ago * interval '1 hour', a.id, 'presence', NULL, up, why
          FROM agents a, (VALUES (41, 'online', 'connected'), (30, 'offline', 'goodbye'), (20, 'online', 'connected'),
                                 (8, 'offline', 'lost')) AS changes(ago, up, why);
        UPDATE agent_state SET presence_since = now() - interval '8 hours', cause = 'lost';
        UPDATE host_vitals SET vitals_at = now() - interval '30 hours'";
    console.site.psql(presence).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    for range in ["7d", "30d"] {
        let path = format!("/hosts/{id}/series?range={range}");
        let series: Value = serde_json::from_str(&client.get(&path).await?.body)?;
        let gaps = series["gaps"].as_array().unwrap();
        assert_eq!(gaps.len(), 2, "{range}: {gaps:?}");
        assert_eq!(gaps[0]["reason"], "offline (goodbye)", "{range}");
        let last = gaps[1]["reason"].as_str().unwrap();
        assert!(last.starts_with("offline since 20"), "{range}: {last}");
        assert!(last.ends_with(" UTC (lost)"), "{range}: {last}");
        assert_eq!(gaps[1]["to"], series["to"], "it lasts until now");
    }
    let hour = client.get(&format!("/hosts/{id}/series?range=1h")).await?;
    hour.shows(&["offline since 20"]);
    let page = client.get(&format!("/hosts/{id}/values?range=7d")).await?;
    page.shows(&["offline since 20", "offline (goodbye)", "50.0 %"]);
    // The latest sample is older than a day.
    let page = client.get(&format!("/hosts/{id}")).await?;
    page.shows(&["data-range=\"7d\" aria-current"]);
    Ok(())
}

#[tokio::test]
async fn the_page_of_a_new_host_opens_on_an_hour_and_needs_no_script_for_its_values() -> Result<()>
{
    let console = Console::start().await?;
    seed_hosts(&console.site, 2).await?;
    let decided = "UPDATE agents SET decided_at = now() - interval '20 days' FROM hosts h WHERE h.id = host_id AND hostname = 'web-001'";
    console.site.psql(decided).await?;
    seed_samples(&console.site, "web-000", 20, &[5..=15], |sample| {
        sample.cpu_percent = 37.5;
        sample.disks = vec![disk("/srv", 42_000)];
    })
    .await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    for (hostname, range) in [("web-000", "1h"), ("web-001", "24h")] {
        let id = format!("SELECT id FROM hosts WHERE hostname = '{hostname}'");
        let id = console.site.psql(&id).await?;
        let page = client.get(&format!("/hosts/{id}")).await?;
        let values = format!("/hosts/{id}/values?range={range}");
        page.shows(&[&format!("data-range=\"{range}\" aria-current"), &values]);
        let week = client.get(&format!("/hosts/{id}?range=7d")).await?;
        week.shows(&["values?range=7d", "data-range=\"7d\" aria-current"]);
        let values = client.get(&values).await?;
        match hostname {
            "web-000" => values.shows(&["37.5 %", "disk /srv", "42.0 %", "declared: the spool"]),
            _ => values.shows(&["No samples in this range"]),
        }
    }
    let unknown = format!("/hosts/{}/values", uuid::Uuid::nil());
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
async fn the_fleet_page_draws_what_the_service_counted() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Viewer).await?;
    let empty = client.get("/").await?;
    empty.shows(&["Here will be pictures of the fleet"]);
    // Every third host is offline. The number of a host is its CPU and its disk in percent.
    seed_hosts(&console.site, 30).await?;
    seed_pictures(&console.site).await?;
    let page = client.get("/").await?;
    let (_, glance) = page.body.split_once("id=\"glance\"").context("none")?;
    let (glance, _) = glance.split_once("</section>").context("no end")?;
    let id = "SELECT id FROM hosts WHERE hostname = 'web-029'";
    let id = console.site.psql(id).await?;
    for shown in [
        "now 20 online, 10 offline",
        "<caption>Hosts online by the hour</caption>",
        "<tr><td>25 to 30</td><td>4</td></tr>",
        "<title>25 to 30 %: 4 hosts</title>",
        "<caption>Memory of hosts</caption>",
        "<caption>Fullest disk of hosts</caption>",
        &format!("<a href=\"/hosts/{id}\">web-029</a>"),
        "<a href=\"/hosts?q=version%3A0.1.0\">0.1.0</a>",
    ] {
        assert!(glance.contains(shown), "{shown} is not in {glance}");
    }
    // It is offline; it is not among the ten; not that old.
    for absent in [">web-027</a>", ">web-001</a>", "out of date"] {
        assert!(!glance.contains(absent), "{absent} is in {glance}");
    }
    let search = client.get("/hosts?q=version%3A0.1.0").await?;
    search.shows(&["web-029"]);
    let old = "UPDATE fleet_pictures SET at = now() - interval '6 minutes'";
    console.site.psql(old).await?;
    client.get("/").await?.shows(&["out of date"]);
    Ok(())
}

/// As on a new installation: the service counts when the first host reports, long before its period is over.
#[tokio::test]
async fn the_first_host_is_drawn_soon_after_it_reports() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let agent = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    stream.report_acked(1..=2).await?;
    eventually("the page draws the host", async || {
        let page = client.get("/").await;
        page.is_ok_and(|page| page.has("now 1 online, 0 offline") && page.has("1 host online"))
    })
    .await
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

/// More bytes than the buffers of a connection take.
const MANY: &str = "
    INSERT INTO people_events (at, actor, kind, subject, detail)
    SELECT now() - n * interval '1 ms', 'zoe', 'user added', 'x', repeat('x', 500) FROM generate_series(1, 40000) AS n";

#[tokio::test]
async fn an_export_goes_to_the_end_or_says_that_it_was_interrupted() -> Result<()> {
    let mut console = Console::start().await?;
    console.site.psql(MANY).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let path = "/activity/export?actor=zoe&format=csv";
    let whole = client.get(path).await?;
    assert_eq!(whole.body.lines().count(), 40_001);
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
    assert!(rest.lines().count() < 40_000);
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
