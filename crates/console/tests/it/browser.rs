//! The console in Chromium, with the real service behind it.
//!
//! Every test fails on an error in the browser's log, which is how violations of the
//! Content-Security-Policy show, and pages fail on every violation that axe-core finds.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use svc_store::{LinkKind, Role};
use svc_testkit::{FakeAgent, MANUAL, eventually, is_active, machine, token};

use crate::{
    support::{Console, seed_history, seed_hosts},
    webdriver::Browser,
};

/// Signs in by a one-time link, as `make dev` prints it.
pub async fn enter(browser: &Browser, console: &Console, name: &str, role: Role) -> Result<()> {
    let code = console.link(name, role, LinkKind::SignIn).await?;
    browser
        .goto(&format!("{}/welcome#{code}", console.origin))
        .await?;
    browser.shows("in service").await
}

async fn is_clean(browser: &Browser, page: &str) -> Result<()> {
    browser.run(include_str!("vendor/axe.min.js")).await?;
    let check = "const done = arguments[arguments.length - 1];
        axe.run(document).then(found => done(found.violations.map(
            v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html + ' ' + (n.any[0]?.message ?? '')).join(' | '))));";
    let found = browser.run_async(check).await?;
    ensure!(
        found.as_array().is_some_and(Vec::is_empty),
        "{page}: {found:#}"
    );
    browser.is_quiet().await.with_context(|| page.to_owned())
}

/// Pictures for people to look at, and for the README.
fn picture(name: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-pictures");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{name}.png")))
}

#[tokio::test]
async fn every_page_is_accessible_and_obeys_the_policy_in_both_themes_and_on_a_phone() -> Result<()>
{
    let (console, instance) = Console::with_service().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(900))?;
    agent.open(instance.grpc, &secret).await??.answer().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    let host = console
        .site
        .psql("SELECT id FROM hosts WHERE hostname = 'web-042'")
        .await?;
    let agent = console
        .site
        .psql("SELECT id FROM agents WHERE status = 'pending'")
        .await?;
    let pages = [
        ("fleet", "/".into()),
        ("hosts", "/hosts".into()),
        ("host", format!("/hosts/{host}?range=1h")),
        ("approvals", "/approvals".into()),
        ("agent", format!("/agents/{agent}")),
        ("tokens", "/tokens".into()),
        ("activity", "/activity".into()),
        ("service", "/service".into()),
        ("people", "/people".into()),
    ];
    for theme in ["light", "dark"] {
        browser
            .run(&format!("localStorage.setItem('theme', '{theme}')"))
            .await?;
        for (name, path) in &pages {
            browser.goto(&format!("{}{path}", console.origin)).await?;
            if *name == "host" {
                browser.shows("Presence").await?;
            }
            is_clean(&browser, &format!("{name}, {theme}")).await?;
            browser
                .picture(&picture(&format!("{name}-{theme}"))?)
                .await?;
        }
    }
    browser.resize(390, 844).await?;
    for (name, path) in &pages {
        browser.goto(&format!("{}{path}", console.origin)).await?;
        let wide = browser
            .run("return document.documentElement.scrollWidth > innerWidth")
            .await?;
        browser.picture(&picture(&format!("{name}-phone"))?).await?;
        ensure!(wide == false, "{name} is wider than a phone");
        is_clean(&browser, &format!("{name}, phone")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_waiting_agent_appears_and_is_approved_without_reloading() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "olga", Role::Operator).await?;
    browser
        .goto(&format!("{}/approvals", console.origin))
        .await?;
    browser.shows("Nothing waits").await?;
    browser.run("window.sameDocument = true").await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(5))?;
    let mut waiting = agent.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    browser.shows("web-5").await?;
    let same = browser.run("return window.sameDocument === true").await?;
    ensure!(same == true, "the page was loaded again");
    browser.click("td.act a").await?;
    browser.shows("May this machine report?").await?;
    browser.click("input[value=approve]").await?;
    browser.click("section button.primary").await?;
    browser.shows("Nothing waits").await?;
    let answer = waiting.answer().await?;
    ensure!(is_active(&answer), "{answer:?}");
    browser.is_quiet().await
}

#[tokio::test]
async fn searching_as_one_types_works_by_keyboard_and_keeps_the_search_in_the_address() -> Result<()>
{
    let console = Console::start().await?;
    seed_hosts(&console.site, 60).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Viewer).await?;
    browser.goto(&format!("{}/hosts", console.origin)).await?;
    browser.shows("60 hosts").await?;
    browser.keys("/web-042").await?;
    browser.shows("1 host").await?;
    eventually("the address follows", async || {
        let address = browser
            .run("return location.search")
            .await
            .unwrap_or_default();
        address
            .as_str()
            .is_some_and(|search| search.contains("q=web-042"))
    })
    .await?;
    browser.run("location.reload()").await?;
    browser.shows("1 host").await?;
    // Rows of the list that is shown are live, not those of the list before.
    console
        .site
        .psql("UPDATE host_vitals SET cpu_percent = 97 FROM hosts WHERE id = host_id AND hostname = 'web-042'")
        .await?;
    browser.shows("97 %").await?;
    browser.is_quiet().await
}

#[tokio::test]
async fn a_session_that_ends_leads_to_the_page_to_sign_in() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 3).await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Viewer).await?;
    browser.goto(&format!("{}/hosts", console.origin)).await?;
    browser.shows("3 hosts").await?;
    console.site.psql("DELETE FROM console.sessions").await?;
    browser.keys("/web").await?;
    browser.shows("Sign in").await?;
    // The search, and the stream that tried again, were refused.
    browser.is_quiet().await
}
