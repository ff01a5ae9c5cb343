//! The console in Chromium, with the real service behind it.
//!
//! Every test fails on an error in the browser's log, which is how violations of the
//! Content-Security-Policy show.

use anyhow::{Result, ensure};
use svc_store::{LinkKind, Role};
use svc_testkit::{FakeAgent, MANUAL, eventually, is_active, machine, token};

use crate::{
    support::{Console, seed_hosts},
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
