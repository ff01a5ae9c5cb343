//! What people do, in Chromium: with the real service, its agents and the real install script behind it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::{
    browser::enter,
    support::{Console, seed_history, seed_hosts},
    webdriver::{Browser, ENTER, SPACE, TAB},
};
use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{
    ActiveAgent, FakeAgent, MANUAL, Program, Site, eventually, is_active, machine, token,
};

#[tokio::test]
async fn a_conflict_is_resolved_with_both_machines_side_by_side() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let first = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let mut renamed = machine(1);
    renamed.hostname = "web-1-new".into();
    let secret = token(&console.site, MANUAL).await?;
    let second = FakeAgent::on(renamed)?;
    let mut waiting = second.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "olga", Role::Operator).await?;
    browser
        .goto(&format!("{}/approvals", console.origin))
        .await?;
    browser.shows("web-1-new").await?;
    browser.click("td.act a").await?;
    browser.shows("Two agents, side by side").await?;
    browser.shows("The same machine, reinstalled.").await?;
    browser.click("input[value=replace]").await?;
    browser.click("section button.primary").await?;
    browser.shows("Nothing waits").await?;
    let answer = waiting.answer().await?;
    ensure!(is_active(&answer), "{answer:?}");
    let old = format!("SELECT status FROM agents WHERE id = '{}'", first.id);
    console.site.expect(&old, "revoked").await?;
    browser.is_quiet().await
}

/// A folder of releases with the agent of this workspace.
fn releases(site: &Site) -> Result<PathBuf> {
    let folder = site.path("releases");
    let arch = std::env::consts::ARCH;
    let release = folder.join("9.9.9/linux").join(arch);
    std::fs::create_dir_all(&release)?;
    let agent = Program::named("svc-agent")?;
    std::fs::copy(agent.path(), release.join("svc-agent"))?;
    Ok(folder)
}

/// Runs what the console shows, as cloud-init would, into a folder of its own.
async fn run_shown(command: &str, folder: &Path) -> Result<()> {
    let output = tokio::process::Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("DESTDIR", folder)
        .stdin(Stdio::null())
        .output()
        .await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// The installed configuration, moved to where the test has put it.
fn relocate(root: &Path) -> Result<PathBuf> {
    let etc = root.join("etc/svc");
    let config = std::fs::read_to_string(etc.join("agent.toml"))?;
    let moved = config.replace("/etc/svc", &etc.display().to_string());
    let data = root.join("var");
    std::fs::create_dir(&data)?;
    let file = root.join("agent.toml");
    std::fs::write(&file, format!("{moved}data_dir = \"{}\"\n", data.display()))?;
    Ok(file)
}

#[tokio::test]
async fn a_token_is_created_and_the_shown_command_enrols_a_machine() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let settings = [
        (
            "CONSOLE_DOWNLOAD_DIR",
            releases(&site)?.display().to_string(),
        ),
        (
            "CONSOLE_INGEST_ADDRESS",
            format!("localhost:{}", instance.grpc.port()),
        ),
        (
            "CONSOLE_INGEST_CA",
            site.path("server.crt").display().to_string(),
        ),
    ];
    let console = Console::on(site, &settings).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    browser.goto(&format!("{}/tokens", console.origin)).await?;
    browser.click("input[name=label]").await?;
    browser.keys("racks").await?;
    browser.click("form.fields button.primary").await?;
    browser.shows("only time that the token is shown").await?;
    let command = browser
        .run("return document.getElementById('unattended').textContent")
        .await?;
    let root = tempfile::tempdir()?;
    run_shown(command.as_str().context("no command")?, root.path()).await?;
    let unit = root.path().join("etc/systemd/system/svc-agent.service");
    ensure!(std::fs::read_to_string(unit)?.contains("ExecStart=/usr/local/bin/svc-agent run"));
    let config = relocate(root.path())?;
    let installed = Program::at(root.path().join("usr/local/bin/svc-agent")).arguments(
        ["run", "--config"]
            .map(Into::into)
            .into_iter()
            .chain([config.into_os_string()]),
    );
    let agent = installed.start()?;
    browser
        .goto(&format!("{}/approvals", console.origin))
        .await?;
    browser
        .shows("Review")
        .await
        .with_context(|| agent.logs())?;
    browser.click("td.act a").await?;
    browser.shows("May this machine report?").await?;
    browser.click("input[value=approve]").await?;
    browser.click("section button.primary").await?;
    console
        .site
        .becomes("SELECT presence FROM agent_state", "online")
        .await
        .with_context(|| agent.logs())?;
    browser.goto(&format!("{}/hosts", console.origin)).await?;
    browser.shows("online").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn hosts_are_labelled_in_bulk_after_a_preview() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 30).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "olga", Role::Operator).await?;
    browser
        .goto(&format!("{}/hosts?q=web-00", console.origin))
        .await?;
    browser.shows("10 hosts").await?;
    browser.click("#pick-all").await?;
    browser.click("form#bulk details summary").await?;
    browser.click("input[name=labels]").await?;
    browser.keys("team=web, -env").await?;
    browser.click("button[value=label]").await?;
    browser.shows("Label 10 hosts").await?;
    let before = "SELECT count(*) FROM hosts WHERE labels ? 'team'";
    console.site.expect(before, "0").await?;
    browser.click("section button.primary").await?;
    // The activity says it in these words; the preview does not.
    browser.shows("team=web, -env").await?;
    let after = "SELECT count(*) FROM hosts WHERE labels = '{\"team\": \"web\"}'";
    console.site.expect(after, "10").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_revoked_agent_loses_its_stream_and_the_reason_is_on_record() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let agent = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let _stream = agent.heartbeat().await?;
    let presence = "SELECT presence FROM agent_state";
    console.site.becomes(presence, "online").await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "olga", Role::Operator).await?;
    let page = format!("{}/agents/{}", console.origin, agent.id);
    browser.goto(&page).await?;
    browser.click("input[name=reason]").await?;
    browser.keys("stolen").await?;
    browser.click("section button.bad").await?;
    console.site.becomes(presence, "offline").await?;
    browser.goto(&page).await?;
    browser.shows("stolen").await?;
    browser.shows("by olga").await?;
    browser.is_quiet().await
}

/// The status of a request that the page's own scripts send.
async fn status_of(browser: &Browser, path: &str) -> Result<i64> {
    let script = format!(
        "const done = arguments[arguments.length - 1];
         fetch('{path}', {{method: 'POST', body: new URLSearchParams()}}).then(answer => done(answer.status));"
    );
    let status = browser.run_async(&script).await?;
    status.as_i64().context("no status")
}

#[tokio::test]
async fn each_role_sees_and_does_only_what_it_may() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 3).await?;
    let agent = console.site.psql("SELECT id FROM agents LIMIT 1").await?;
    let decide = format!("/agents/{agent}/decide");
    for (name, role, operates, administers) in [
        ("vera", Role::Viewer, false, false),
        ("olga", Role::Operator, true, false),
        ("ann", Role::Admin, true, true),
    ] {
        let browser = Browser::open().await?;
        enter(&browser, &console, name, role).await?;
        let has = async |path: &str, css: &str| -> Result<bool> {
            browser.goto(&format!("{}{path}", console.origin)).await?;
            let found = browser
                .run(&format!("return document.querySelector('{css}') !== null"))
                .await?;
            Ok(found == true)
        };
        let menu = has("/hosts", "form#bulk details").await?;
        let decision = has(&format!("/agents/{agent}"), "form[action$=decide]").await?;
        let tokens = has("/tokens", "form[action=\"/tokens\"]").await?;
        let people = has("/hosts", "a[href=\"/people\"]").await?;
        ensure!((menu, decision) == (operates, operates), "{name}");
        ensure!((tokens, people) == (administers, administers), "{name}");
        browser.is_quiet().await?;
        // What a page does not offer is refused too. An operator's empty form is only a bad one.
        for (path, allowed) in [(decide.as_str(), operates), ("/tokens", administers)] {
            let status = if allowed { 400 } else { 403 };
            ensure!(status_of(&browser, path).await? == status, "{name} {path}");
            let line = format!(
                "{path} - Failed to load resource: the server responded with a status of {status}"
            );
            browser.complains_only_of(&[&line]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_waiting_agent_is_approved_by_keyboard_alone() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(8))?;
    let mut waiting = agent.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "olga", Role::Operator).await?;
    // The first stop of every page leads past the menu.
    browser.keys(TAB).await?;
    ensure!(browser.focused("textContent").await? == "Skip to the content");
    tab_to(&browser, "href", "/approvals").await?;
    browser.keys(ENTER).await?;
    browser.shows("web-8").await?;
    tab_to(&browser, "href", "/agents/").await?;
    browser.keys(ENTER).await?;
    browser.shows("May this machine report?").await?;
    tab_to(&browser, "value", "approve").await?;
    browser.keys(SPACE).await?;
    tab_to(&browser, "textContent", "Decide").await?;
    browser.keys(ENTER).await?;
    browser.shows("Nothing waits").await?;
    let answer = waiting.answer().await?;
    ensure!(is_active(&answer), "{answer:?}");
    browser.is_quiet().await
}

/// Presses Tab until an element has the focus whose property contains `text`.
async fn tab_to(browser: &Browser, property: &str, text: &str) -> Result<()> {
    for _ in 0..60 {
        browser.keys(TAB).await?;
        if browser.focused(property).await?.contains(text) {
            return Ok(());
        }
    }
    anyhow::bail!("Tab does not reach {text}")
}

#[tokio::test]
async fn plots_name_the_reason_of_a_gap() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    let host = "SELECT id FROM hosts WHERE hostname = 'web-042'";
    let host = console.site.psql(host).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Viewer).await?;
    browser
        .goto(&format!("{}/hosts/{host}?range=24h", console.origin))
        .await?;
    eventually("a plot says how many gaps it has", async || {
        let script = "return [...document.querySelectorAll('#plots [role=img]')].map(plot => plot.ariaLabel).join(' ')";
        let labels = browser.run(script).await.unwrap_or_default();
        labels.as_str().is_some_and(|labels| labels.contains(" gaps.") && !labels.contains(" 0 gaps."))
    })
    .await?;
    browser.click("#plot-table summary").await?;
    eventually("the table has the reason", async || {
        let script = "return document.getElementById('plot-table').innerText";
        let table = browser.run(script).await.unwrap_or_default();
        table
            .as_str()
            .is_some_and(|table| table.contains("declared: the spool was full"))
    })
    .await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_lost_database_is_named_on_the_open_page_and_forgotten_when_it_is_back() -> Result<()> {
    let site = Site::with_own_server().await?;
    let mut console = Console::on(site, &[]).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Viewer).await?;
    let notice = async || {
        let text = browser
            .run("return document.getElementById('notice').innerText")
            .await;
        text.is_ok_and(|text| {
            text.as_str()
                .is_some_and(|text| text.contains("may be out of date"))
        })
    };
    eventually("the page is live", async || {
        let metrics = console.client().get("/metrics").await;
        metrics.is_ok_and(|metrics| metrics.body.contains("console_live_streams 1"))
    })
    .await?;
    console.site.postgres().freeze()?;
    eventually("the page says that it is stale", notice).await?;
    console.site.postgres().thaw()?;
    eventually("the page is live again", async || !notice().await).await?;
    browser.is_quiet().await
}
