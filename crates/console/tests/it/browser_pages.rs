//! Every page as people see it: in both themes, on a phone, on a small screen, and with nothing to show yet.
//!
//! A page fails on every violation that axe-core finds, on an error in the browser's log, and where it is wider than the
//! window. The pictures are in `target/console-pictures`, for people to look at; two of them are in docs/pictures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{FakeAgent, MANUAL, machine, token};

use crate::{
    browser::enter,
    support::{Console, seed_fleet, seed_history, seed_hosts},
    webdriver::Browser,
};

fn picture(name: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-pictures");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{name}.png")))
}

/// The violations that axe-core finds.
const CHECK: &str = "const done = arguments[arguments.length - 1];
    axe.run(document).then(found => done(found.violations.map(
        v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html + ' ' + (n.any[0]?.message ?? '')).join(' | '))));";

async fn is_clean(browser: &Browser, page: &str) -> Result<()> {
    browser.run(include_str!("vendor/axe.min.js")).await?;
    let found = browser.run_async(CHECK).await?;
    ensure!(
        found.as_array().is_some_and(Vec::is_empty),
        "{page}: {found:#}"
    );
    browser.is_quiet().await.with_context(|| page.to_owned())
}

async fn fits(browser: &Browser, page: &str) -> Result<()> {
    let wide = "return document.documentElement.scrollWidth > innerWidth";
    ensure!(browser.run(wide).await? == false, "{page} is too wide");
    Ok(())
}

/// Pages by their names: an address, or what leads there.
struct Pages<'a> {
    browser: &'a Browser,
    console: &'a Console,
    paths: Vec<(&'static str, String)>,
}

impl Pages<'_> {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let reached = ["bulk", "token-new"].into_iter();
        self.paths.iter().map(|(name, _)| *name).chain(reached)
    }

    async fn open(&self, name: &str) -> Result<()> {
        let browser = self.browser;
        match name {
            "bulk" => {
                self.goto("/hosts?q=web").await?;
                browser.click("#pick-all").await?;
                browser.click("form#bulk details summary").await?;
                browser.click("button[value=retire]").await?;
                browser.shows("The hosts leave all lists").await
            }
            "token-new" => {
                self.goto("/tokens").await?;
                browser.click("input[name=label]").await?;
                browser.keys("web servers").await?;
                browser.click("form.fields button.primary").await?;
                browser.shows("only time that the token is shown").await
            }
            _ => {
                let page = self.paths.iter().find(|(known, _)| *known == name);
                self.goto(&page.context("no such page")?.1).await?;
                match name {
                    "host" => browser.shows("Presence").await,
                    _ => Ok(()),
                }
            }
        }
    }

    async fn goto(&self, path: &str) -> Result<()> {
        let url = format!("{}{path}", self.console.origin);
        self.browser.goto(&url).await
    }
}

fn lists() -> Vec<(&'static str, String)> {
    let lists = [
        ("fleet", "/"),
        ("hosts", "/hosts"),
        ("approvals", "/approvals"),
        ("tokens", "/tokens"),
        ("activity", "/activity"),
        ("service", "/service"),
        ("people", "/people"),
    ];
    lists.map(|(name, path)| (name, path.to_owned())).into()
}

#[tokio::test]
async fn every_page_is_accessible_and_obeys_the_policy_in_both_themes_and_on_a_phone() -> Result<()>
{
    let (console, instance) = Console::with_service().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    seed_fleet(&console.site).await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(900))?;
    agent.open(instance.grpc, &secret).await??.answer().await?;
    let id = async |sql: &str| console.site.psql(sql).await;
    let host = id("SELECT id FROM hosts WHERE hostname = 'web-042'").await?;
    let agent = id("SELECT id FROM agents WHERE status = 'pending'").await?;
    let token = id("SELECT id FROM enrolment_tokens").await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    let mut pages = Pages {
        browser: &browser,
        console: &console,
        paths: lists(),
    };
    pages.paths.extend([
        ("host", format!("/hosts/{host}?range=1h")),
        ("agent", format!("/agents/{agent}")),
        ("token", format!("/tokens/{token}")),
    ]);
    for theme in ["light", "dark"] {
        let choose = format!("localStorage.setItem('theme', '{theme}')");
        browser.run(&choose).await?;
        for name in pages.names() {
            pages.open(name).await?;
            browser
                .picture(&picture(&format!("{name}-{theme}"))?)
                .await?;
            is_clean(&browser, &format!("{name}, {theme}")).await?;
        }
    }
    for (width, height, screen) in [(1024, 768, "small"), (390, 844, "phone")] {
        browser.resize(width, height).await?;
        for name in pages.names() {
            pages.open(name).await?;
            let page = format!("{name}-{screen}");
            browser.picture(&picture(&page)?).await?;
            fits(&browser, &page).await?;
            is_clean(&browser, &page).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn pages_of_an_empty_fleet_are_accessible_and_say_what_to_do() -> Result<()> {
    let console = Console::start().await?;
    let browser = Browser::open().await?;
    enter(&browser, &console, "ann", Role::Admin).await?;
    let pages = Pages {
        browser: &browser,
        console: &console,
        paths: lists(),
    };
    for (name, words) in [
        ("fleet", "Add the first host"),
        ("hosts", "No hosts yet"),
        ("approvals", "Nothing waits"),
        ("tokens", "A machine needs a token to register"),
        ("activity", "user added"),
        ("service", "No instance has ever held a lease"),
        ("people", "New person"),
    ] {
        pages.open(name).await?;
        browser.shows(words).await?;
        browser.picture(&picture(&format!("{name}-empty"))?).await?;
        is_clean(&browser, &format!("{name}, empty")).await?;
    }
    Ok(())
}
