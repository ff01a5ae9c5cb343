//! Every page as people see it: in both themes, on a phone, on a small screen, and with nothing to show yet.
//!
//! A page fails on every violation that axe-core finds, on an error in the browser's log, and where it is wider than the
//! window. The pictures are in `target/console-pictures`, for people to look at; two of them are in docs/pictures.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{FakeAgent, machine};

use crate::{
    support::{
        Console, PAGES, seed_fleet, seed_history, seed_hosts, seed_pictures, seed_rollout,
        seed_trust,
    },
    webdriver::Browser,
};

/// The violations that axe-core finds.
const CHECK: &str = "const done = arguments[arguments.length - 1];
    axe.run(document).then(found => done(found.violations.map(
        v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html + ' ' + (n.any[0]?.message ?? '')).join(' | '))));";

/// How many pictures of the fleet are seen: as wide as their place, and with something in them that has a height and a colour.
const DRAWN: &str = "const seen = shape => shape.getBoundingClientRect().height > 1 && getComputedStyle(shape).fill !== 'rgb(0, 0, 0)';
    return [...document.querySelectorAll('svg.picture')].filter(picture => picture.getBoundingClientRect().width > 200
        && [...picture.querySelectorAll('rect, path')].some(seen)).length";

/// Pages by their names: an address, or what leads there.
struct Pages {
    browser: Browser,
    paths: Vec<(&'static str, String)>,
}

impl Pages {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let reached = ["bulk", "token-new"].into_iter();
        self.paths.iter().map(|(name, _)| *name).chain(reached)
    }

    async fn open(&self, name: &str) -> Result<()> {
        let browser = &self.browser;
        match name {
            "bulk" => {
                browser.visit("/hosts?q=web").await?;
                browser.click("#pick-all").await?;
                browser.click("form#bulk details summary").await?;
                browser.click("button[value=retire]").await?;
                browser.shows("The hosts leave all lists").await
            }
            "token-new" => {
                browser.visit("/tokens").await?;
                browser.click("input[name=label]").await?;
                browser.keys("web servers").await?;
                browser.click("form.fields button.primary").await?;
                browser.shows("only time that the token is shown").await
            }
            _ => {
                let page = self.paths.iter().find(|(known, _)| *known == name);
                browser.visit(&page.context("no such page")?.1).await?;
                match name {
                    "host" => browser.shows("Presence").await,
                    _ => Ok(()),
                }
            }
        }
    }

    /// They are further down than a picture of the page reaches.
    async fn pictures_of_the_fleet(&self, screen: &str) -> Result<()> {
        self.open("fleet").await?;
        let down = "document.querySelector('svg.picture').closest('section').scrollIntoView()";
        self.browser.run(down).await?;
        let drawn = self.browser.run(DRAWN).await?;
        ensure!(drawn == 4, "{drawn} pictures are seen ({screen})");
        self.judge(&format!("fleet-pictures-{screen}")).await
    }

    /// Takes a picture, and fails on what axe-core or the browser's log have to say.
    async fn judge(&self, page: &str) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-pictures");
        std::fs::create_dir_all(&folder)?;
        let picture = folder.join(format!("{page}.png"));
        self.browser.picture(&picture).await?;
        self.browser.run(include_str!("vendor/axe.min.js")).await?;
        let found = self.browser.run_async(CHECK).await?;
        let clean = found.as_array().is_some_and(Vec::is_empty);
        ensure!(clean, "{page}: {found:#}");
        let quiet = self.browser.is_quiet().await;
        quiet.with_context(|| page.to_owned())
    }
}

/// The pages of the menu, by their names.
fn menu() -> Vec<(&'static str, String)> {
    let name = |path: &'static str| match path {
        "/" => "fleet",
        path => &path[1..],
    };
    PAGES.map(|path| (name(path), path.to_owned())).into()
}

#[tokio::test]
async fn every_page_is_accessible_and_obeys_the_policy_in_both_themes_and_on_a_phone() -> Result<()>
{
    let (console, instance) = Console::with_service().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    seed_fleet(&console.site).await?;
    seed_pictures(&console.site).await?;
    seed_rollout(&console.site).await?;
    seed_trust(&console.site).await?;
    let agent = FakeAgent::on(machine(900))?;
    let _waiting = console.waiting(&instance, agent).await?;
    let id = async |sql: &str| console.site.psql(sql).await;
    let host = id("SELECT id FROM hosts WHERE hostname = 'web-042'").await?;
    let agent = id("SELECT id FROM agents WHERE status = 'pending'").await?;
    let token = id("SELECT id FROM enrolment_tokens").await?;
    let mut pages = Pages {
        browser: Browser::of(&console, "ann", Role::Admin).await?,
        paths: menu(),
    };
    pages.paths.extend([
        ("host", format!("/hosts/{host}?range=1h")),
        ("values", format!("/hosts/{host}/values?range=1h")),
        ("agent", format!("/agents/{agent}")),
        ("token", format!("/tokens/{token}")),
        ("rollout", "/updates/7".into()),
        ("settings-rule", "/settings?rule=1".into()),
        (
            "settings-preview",
            "/settings?action=add&labels=env%3Dprod&share=10&interval=10s".into(),
        ),
        (
            "rollout-preview",
            "/updates?serial=8&labels=env%3Dprod&stages=5,100%25&soak=30m&hours=mon-fri+08:00-16:00".into(),
        ),
    ]);
    for theme in ["light", "dark"] {
        let choose = format!("localStorage.setItem('theme', '{theme}')");
        pages.browser.run(&choose).await?;
        for name in pages.names() {
            pages.open(name).await?;
            pages.judge(&format!("{name}-{theme}")).await?;
        }
        pages.pictures_of_the_fleet(theme).await?;
    }
    for (width, height, screen) in [(1024, 768, "small"), (390, 844, "phone")] {
        pages.browser.resize(width, height).await?;
        for name in pages.names() {
            pages.open(name).await?;
            let page = format!("{name}-{screen}");
            let wide = "return document.documentElement.scrollWidth > innerWidth";
            let fits = pages.browser.run(wide).await? == false;
            pages.judge(&page).await?;
            ensure!(fits, "{page} is too wide");
        }
        pages.pictures_of_the_fleet(screen).await?;
    }
    Ok(())
}

/// In the dark theme: paper is white.
#[tokio::test]
async fn a_printed_page_has_its_lists_and_none_of_its_controls() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    seed_hosts(&console.site, 60).await?;
    seed_history(&console.site).await?;
    let agent = FakeAgent::on(machine(900))?;
    let _waiting = console.waiting(&instance, agent).await?;
    let text = async |sql: &str| console.site.psql(sql).await;
    let host = text("SELECT id FROM hosts WHERE hostname = 'web-042'").await?;
    let waiting = "SELECT facts ->> 'hostname' FROM agents WHERE status = 'pending'";
    let waiting = text(waiting).await?;
    let browser = Browser::of(&console, "ann", Role::Admin).await?;
    browser.run("localStorage.setItem('theme', 'dark')").await?;
    browser.emulate("print").await?;
    for (path, words) in [
        ("/hosts".to_owned(), ["web-042", "env=test"]),
        ("/approvals".into(), [waiting.as_str(), "new"]),
        (format!("/hosts/{host}"), ["web-042", "deployed 4.2"]),
        (
            format!("/hosts/{host}/values?range=1h"),
            ["web-042", "disk /var"],
        ),
        ("/people".into(), ["ann", "admin"]),
        ("/activity".into(), ["deployed 4.2", "agent web-042"]),
    ] {
        browser.visit(&path).await?;
        for words in words {
            browser.shows(words).await.context(path.clone())?;
        }
        let controls = "return [...document.querySelectorAll('.top, button, .search, form:not(:has(table)), input[type=checkbox]')]
            .filter(element => element.checkVisibility()).map(element => element.outerHTML)";
        let controls = browser.run(controls).await?;
        ensure!(
            controls.as_array().is_some_and(Vec::is_empty),
            "{path}: {controls:#}"
        );
        let colours = "const body = getComputedStyle(document.body); return body.color + ' on ' + body.backgroundColor";
        let colours = browser.run(colours).await?;
        ensure!(
            colours == "rgb(0, 0, 0) on rgb(255, 255, 255)",
            "{path}: {colours}"
        );
        let pdf = browser.print().await?;
        ensure!(
            pdf.starts_with(b"%PDF") && pdf.len() > 10_000,
            "{path}: {} bytes",
            pdf.len()
        );
    }
    browser.is_quiet().await
}

#[tokio::test]
async fn pages_of_an_empty_fleet_are_accessible_and_say_what_to_do() -> Result<()> {
    let console = Console::start().await?;
    let pages = Pages {
        browser: Browser::of(&console, "ann", Role::Admin).await?,
        paths: menu(),
    };
    for (name, words) in [
        ("fleet", "Add the first host"),
        ("fleet", "Here will be pictures of the fleet"),
        ("hosts", "No hosts yet"),
        ("approvals", "Nothing waits"),
        ("tokens", "A machine needs a token to register"),
        ("updates", "No releases yet"),
        ("settings", "No rules yet"),
        ("activity", "user added"),
        ("service", "No instance has ever held a lease"),
        ("people", "New person"),
    ] {
        pages.open(name).await?;
        pages.browser.shows(words).await?;
        pages.judge(&format!("{name}-empty")).await?;
    }
    Ok(())
}
