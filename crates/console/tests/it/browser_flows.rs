//! What people do, in Chromium: with the real service, its agents and the real install script behind it.
//!
//! Every test fails on an error in the browser's log, which is how violations of the
//! Content-Security-Policy show.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{FakeAgent, Program, Site, eventually, is_active, machine};

use crate::{
    support::{Console, seed_history, seed_hosts},
    webdriver::{Browser, ENTER, SPACE, TAB},
};

#[tokio::test]
async fn a_waiting_agent_appears_by_itself_and_is_approved_by_keyboard_alone() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let browser = Browser::of(&console, "olga", Role::Operator).await?;
    // The first stop of every page leads past the menu.
    browser.keys(TAB).await?;
    ensure!(browser.focused("textContent").await? == "Skip to the content");
    tab_to(&browser, "href", "/approvals").await?;
    browser.keys(ENTER).await?;
    browser.shows("Nothing waits").await?;
    browser.run("window.sameDocument = true").await?;
    let agent = FakeAgent::on(machine(8))?;
    let mut waiting = console.waiting(&instance, agent).await?;
    browser.shows("web-8").await?;
    let same = browser.run("return window.sameDocument === true").await?;
    ensure!(same == true, "the page was loaded again");
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
async fn searching_as_one_types_works_by_keyboard_and_keeps_the_search_in_the_address() -> Result<()>
{
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    let browser = Browser::of(&console, "ann", Role::Viewer).await?;
    browser.visit("/hosts").await?;
    browser.shows("60 hosts").await?;
    let entries = browser.run("return history.length").await?;
    browser.keys("/web-042").await?;
    browser.shows("1 host").await?;
    let after = browser.run("return history.length").await?;
    ensure!(after == entries, "typing added entries to the history");
    browser
        .becomes("location.search.includes('q=web-042')")
        .await?;
    browser.run("location.reload()").await?;
    browser.shows("1 host").await?;
    // Rows of the list that is shown are live, not those of the list before.
    let busy = "UPDATE host_vitals SET cpu_percent = 97 FROM hosts WHERE id = host_id AND hostname = 'web-042'";
    console.site.psql(busy).await?;
    browser.shows("97 %").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_slash_leads_to_each_search_and_the_text_of_a_refused_form_is_kept() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let browser = Browser::of(&console, "olga", Role::Operator).await?;
    for page in ["/hosts", "/approvals", "/activity"] {
        browser.visit(page).await?;
        browser.keys("/").await?;
        let found = browser.run("return document.activeElement.hasAttribute('data-search')");
        ensure!(found.await? == true, "{page}");
    }
    let host = console.site.psql("SELECT id FROM hosts").await?;
    browser.visit(&format!("/hosts/{host}")).await?;
    browser.click("#note").await?;
    browser.keys("disk replaced").await?;
    console.site.psql("DELETE FROM console.sessions").await?;
    browser.keys(ENTER).await?;
    browser.shows("The session had ended").await?;
    browser
        .becomes("Object.values(sessionStorage).join().includes('disk replaced')")
        .await?;
    browser
        .becomes(&format!(
            "document.querySelector('input[name=next]').value === '/hosts/{host}'"
        ))
        .await
}

#[tokio::test]
async fn a_session_that_ends_leads_to_the_page_to_sign_in() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 3).await?;
    let browser = Browser::of(&console, "ann", Role::Viewer).await?;
    browser.visit("/hosts").await?;
    browser.shows("3 hosts").await?;
    console.site.psql("DELETE FROM console.sessions").await?;
    browser.keys("/web").await?;
    browser.shows("Sign in").await?;
    // The search, and the stream that tried again, were refused.
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
    let address = format!("localhost:{}", instance.grpc.port());
    let pinned = site.path("server.crt").display().to_string();
    let downloads = releases(&site)?.display().to_string();
    let settings = [
        ("CONSOLE_DOWNLOAD_DIR", downloads),
        ("CONSOLE_INGEST_ADDRESS", address),
        ("CONSOLE_INGEST_CA", pinned),
    ];
    let console = Console::on(site, &settings).await?;
    let browser = Browser::of(&console, "ann", Role::Admin).await?;
    browser.visit("/tokens").await?;
    browser.click("input[name=label]").await?;
    browser.keys("racks").await?;
    browser.click("form.fields button.primary").await?;
    browser.shows("only time that the token is shown").await?;
    let command = "return document.getElementById('unattended').textContent";
    let command = browser.run(command).await?;
    let root = tempfile::tempdir()?;
    run_shown(command.as_str().context("no command")?, root.path()).await?;
    let unit = root.path().join("etc/systemd/system/svc-agent.service");
    ensure!(std::fs::read_to_string(unit)?.contains("ExecStart=/usr/local/bin/svc-agent run"));
    let config = relocate(root.path())?.display().to_string();
    let installed = Program::at(root.path().join("usr/local/bin/svc-agent"));
    let agent = installed.arguments(["run", "--config", &config]).start()?;
    browser.visit("/approvals").await?;
    let review = browser.shows("Review").await;
    review.with_context(|| agent.logs())?;
    browser.click("td.act a").await?;
    browser.shows("May this machine report?").await?;
    browser.click("input[value=approve]").await?;
    browser.click("section button.primary").await?;
    let presence = "SELECT presence FROM agent_state";
    let online = console.site.becomes(presence, "online").await;
    online.with_context(|| agent.logs())?;
    browser.visit("/hosts").await?;
    browser.shows("online").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn plots_name_the_reason_of_a_gap() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    let host = "SELECT id FROM hosts WHERE hostname = 'web-042'";
    let host = console.site.psql(host).await?;
    let browser = Browser::of(&console, "ann", Role::Viewer).await?;
    browser.visit(&format!("/hosts/{host}?range=24h")).await?;
    let labels =
        "[...document.querySelectorAll('#plots [role=img]')].map(plot => plot.ariaLabel).join(' ')";
    let gaps = format!("{labels}.includes(' gaps.') && !{labels}.includes(' 0 gaps.')");
    browser.becomes(&gaps).await?;
    browser.click("[data-range='1h']").await?;
    browser.becomes("location.search === '?range=1h'").await?;
    browser.click("#plot-values").await?;
    browser
        .becomes("location.href.endsWith('/values?range=1h')")
        .await?;
    browser.shows("declared: the spool was full").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_lost_database_is_named_on_the_open_page_and_forgotten_when_it_is_back() -> Result<()> {
    const STALE: &str =
        "document.getElementById('notice').innerText.includes('may be out of date')";
    let site = Site::with_own_server().await?;
    let mut console = Console::on(site, &[]).await?;
    let browser = Browser::of(&console, "ann", Role::Viewer).await?;
    eventually("the page is live", async || {
        let metrics = console.client().get("/metrics").await;
        metrics.is_ok_and(|metrics| metrics.has("console_live_streams 1"))
    })
    .await?;
    console.site.postgres().freeze()?;
    browser.becomes(STALE).await?;
    console.site.postgres().thaw()?;
    browser.becomes(&format!("!{STALE}")).await?;
    browser.is_quiet().await
}
