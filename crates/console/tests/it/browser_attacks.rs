//! Attacks that need a browser: pages of other sites, and texts that try to run.
//!
//! A script that an attacker gets into a page shows as an error in the browser's log: the
//! Content-Security-Policy refuses it.

use anyhow::{Result, ensure};
use svc_store::Role;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    support::{Console, seed_history, seed_hostile, seed_hosts, seed_pictures},
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
    let browser = Browser::of(&console, "ann", Role::Admin).await?;
    let people = format!("{}/people", console.origin);
    let form = format!(
        "<!doctype html><form method=post action='{people}'><input name=name value=mallory><input name=role value=admin></form>
         <script>document.forms[0].submit()</script>"
    );
    browser.goto(&hostile_site(form).await?).await?;
    let sent = format!("location.href === '{people}'");
    browser.becomes(&sent).await?;
    let names = "SELECT string_agg(name, ',') FROM console.users";
    console.site.expect(names, "ann").await?;
    let refused = "/people - Failed to load resource: the server responded with a status of 403";
    browser.complains_only_of(&[refused]).await?;
    browser.visit("/people").await?;
    browser.shows("ann").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_page_of_another_site_cannot_frame_the_console() -> Result<()> {
    let console = Console::start().await?;
    let browser = Browser::of(&console, "ann", Role::Admin).await?;
    let frame = format!(
        "<!doctype html><iframe src='{}/people' onload='document.title = \"loaded\"'></iframe>",
        console.origin
    );
    browser.goto(&hostile_site(frame).await?).await?;
    browser.becomes("document.title === 'loaded'").await?;
    browser.complains_only_of(&["frame-ancestors 'none'"]).await
}

#[tokio::test]
async fn texts_of_agents_and_people_run_nowhere() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    let [host, agent, token] = seed_hostile(&console.site, "web-042").await?;
    seed_pictures(&console.site).await?;
    let browser = Browser::of(&console, "ann", Role::Admin).await?;
    for path in [
        "/".into(),
        "/hosts?q=onerror".into(),
        format!("/hosts/{host}?range=24h"),
        format!("/hosts/{host}/values?range=24h"),
        "/approvals".into(),
        format!("/agents/{agent}"),
        "/tokens".into(),
        format!("/tokens/{token}"),
        "/activity".into(),
    ] {
        browser.visit(&path).await?;
        if path.ends_with("?range=24h") && !path.contains("values") {
            browser.shows("Presence").await?;
            browser.shows("[U+202E]").await?;
        }
        let ran =
            "return 'hacked' in window || document.querySelector('main img, main script') !== null";
        ensure!(browser.run(ran).await? == false, "{path}");
        browser.is_quiet().await?;
    }
    Ok(())
}
