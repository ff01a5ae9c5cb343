//! Attacks that need a browser: pages of other sites, and texts that try to run.
//!
//! A script that an attacker gets into a page shows as an error in the browser's log: the
//! Content-Security-Policy refuses it.

use anyhow::{Result, ensure};
use svc_store::Role;
use svc_testkit::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    browser::enter,
    support::{Console, seed_history, seed_hosts},
    webdriver::Browser,
};

/// Serves `page` on another origin, and returns its URL.
async fn hostile_site(page: String) -> Result<String> {
    let socket = TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let mut request = [0; 4096];
            drop(stream.read(&mut request).await);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{page}", page.len());
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    Ok(format!("http://{address}/"))
}

#[tokio::test]
async fn a_form_of_another_site_does_nothing() -> Result<()> {
    let console = Console::start().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    let form = format!(
        "<!doctype html><form method=post action='{}/people'><input name=name value=mallory><input name=role value=admin></form>
         <script>document.forms[0].submit()</script>",
        console.origin
    );
    let hostile = hostile_site(form).await?;
    browser.goto(&hostile).await?;
    eventually("the form was sent", async || {
        let address = browser.run("return location.href").await;
        address.is_ok_and(|address| address == format!("{}/people", console.origin))
    })
    .await?;
    let people = "SELECT string_agg(name, ',') FROM console.users";
    console.site.expect(people, "ann").await?;
    let refused = "/people - Failed to load resource: the server responded with a status of 403";
    browser.complains_only_of(&[refused]).await?;
    browser.goto(&format!("{}/people", console.origin)).await?;
    browser.shows("ann").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_page_of_another_site_cannot_frame_the_console() -> Result<()> {
    let console = Console::start().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    let frame = format!(
        "<!doctype html><iframe src='{}/people' onload='document.title = \"loaded\"'></iframe>",
        console.origin
    );
    browser.goto(&hostile_site(frame).await?).await?;
    eventually("the frame has been tried", async || {
        let title = browser.run("return document.title").await;
        title.is_ok_and(|title| title == "loaded")
    })
    .await?;
    browser.complains_only_of(&["frame-ancestors 'none'"]).await
}

#[tokio::test]
async fn texts_of_agents_and_people_run_nowhere() -> Result<()> {
    const EVIL: &str = "\"><img src=x onerror=hacked=1><script>hacked=1</script>";
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    console.site.psql(&format!(
        "UPDATE host_vitals SET fullest_disk_mount_point = '{EVIL}';
         UPDATE hosts SET hostname = '{EVIL}' || hostname, os = '{EVIL}', labels = jsonb_build_object('a', '{EVIL}'),
                ip_addresses = ARRAY['{EVIL}'];
         UPDATE sample_shapes SET parts = jsonb_build_array(jsonb_build_object('kind', 'disk_used', 'name', '{EVIL}'),
                                                            jsonb_build_object('kind', 'disk_total', 'name', '{EVIL}'));
         UPDATE metric_gaps SET reason = '{EVIL}';
         INSERT INTO host_events (host_id, kind, actor, text)
         SELECT id, 'note', '{EVIL}', '{EVIL}' FROM hosts WHERE hostname LIKE '%web-042';
         INSERT INTO enrolment_tokens (hash, label, created_by, labels) VALUES (sha256('x'), '{EVIL}', '{EVIL}', jsonb_build_object('a', '{EVIL}'));
         INSERT INTO agents (host_id, key, status, version, facts)
         SELECT id, sha256('y'), 'pending', '{EVIL}', jsonb_build_object('hostname', '{EVIL}') FROM hosts WHERE hostname LIKE '%web-001'",
    )).await?;
    let ids = "SELECT (SELECT id FROM hosts WHERE hostname LIKE '%web-042'), (SELECT id FROM agents WHERE status = 'pending'), (SELECT id FROM enrolment_tokens)";
    let ids = console.site.psql(ids).await?;
    let ids: Vec<&str> = ids.split('|').collect();
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    for path in [
        "/".into(),
        "/hosts?q=onerror".into(),
        format!("/hosts/{}?range=24h", ids[0]),
        "/approvals".into(),
        format!("/agents/{}", ids[1]),
        "/tokens".into(),
        format!("/tokens/{}", ids[2]),
        "/activity".into(),
    ] {
        browser.goto(&format!("{}{path}", console.origin)).await?;
        if path.starts_with("/hosts/") {
            browser.shows("Presence").await?;
            browser.click("#plot-table summary").await?;
        }
        let ran =
            "return 'hacked' in window || document.querySelector('main img, main script') !== null";
        ensure!(browser.run(ran).await? == false, "{path}");
        browser.is_quiet().await?;
    }
    Ok(())
}
