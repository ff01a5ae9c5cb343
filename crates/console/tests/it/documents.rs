//! What the documents and templates promise.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use svc_common::settings::Fallback;
use svc_console::config::VARIABLES;
use svc_store::Role;
use tokio::io::AsyncReadExt;

use crate::support::{Console, PAGES, seed_hosts};

#[test]
fn the_document_lists_every_variable() -> Result<()> {
    let document = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/console.md"
    ))?;
    for variable in VARIABLES {
        let fallback = match variable.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Default(value) => format!("`{value}`"),
            Fallback::Unset(text) => text.to_owned(),
        };
        let row = format!(
            "| `{}` | {fallback} | {} |",
            variable.name, variable.meaning
        );
        assert!(document.contains(&row), "docs/console.md lacks: {row}");
    }
    Ok(())
}

/// The database's metrics are those of docs/metrics.md with another prefix; a test of the service compares them.
#[tokio::test]
async fn the_document_lists_every_metric_of_its_own() -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let document = std::fs::read_to_string(format!("{root}/docs/console.md"))?;
    let source = std::fs::read_to_string(format!("{root}/crates/console/src/telemetry.rs"))?;
    let rows = document
        .lines()
        .filter(|line| line.starts_with("| `console_"));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    let documented = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let documented: BTreeSet<&str> = documented.map(without_total).collect();
    ensure!(documented.len() > 5, "the table was not found");
    for name in &documented {
        // A metric with a unit may be registered without it.
        let registered = name.trim_start_matches("console_");
        let forms = [registered, registered.trim_end_matches("_seconds")];
        let exists = forms
            .iter()
            .any(|form| source.contains(&format!("\"{form}\"")));
        assert!(exists, "{name} does not exist");
    }
    let console = Console::start().await?;
    let page = console.client().get("/metrics").await?.body;
    let exposed = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exposed = exposed.filter_map(|line| line.split(' ').next());
    let own: BTreeSet<&str> = exposed
        .filter(|name| !name.starts_with("console_database_"))
        .map(without_total)
        .collect();
    ensure!(own.len() > 5, "the page was not read: {page}");
    let missing: Vec<&&str> = own.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/console.md lacks {missing:?}");
    Ok(())
}

fn without_total(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

/// These fail at run time under the Content-Security-Policy, or are ignored by htmx 4.
#[test]
fn templates_use_nothing_that_the_policy_forbids() -> Result<()> {
    let templates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/templates"))?;
    let templates = templates.collect::<std::io::Result<Vec<_>>>()?;
    ensure!(templates.len() > 20, "only {} templates", templates.len());
    for template in templates {
        let path = template.path();
        let text = std::fs::read_to_string(&path)?;
        for banned in [
            "hx-on",
            "js:",
            "onclick=",
            "style=",
            "<style",
            "hx-vals",
            "javascript:",
        ] {
            assert!(!text.contains(banned), "{} has {banned}", path.display());
        }
        let inline = text
            .split("<script")
            .skip(1)
            .find(|tag| !tag.starts_with(" src="));
        assert_eq!(inline, None, "{}", path.display());
    }
    Ok(())
}

/// Only there is shown what a reader would not see.
#[test]
fn templates_are_rendered_in_one_place() -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let (mut folders, mut found) = (vec![std::path::PathBuf::from(root)], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path)?.contains(".render()") {
                let name = path.file_name().context("no name")?;
                found.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    // The install script is no page.
    let expected = ["download.rs", "render.rs"].map(str::to_owned);
    assert_eq!(found, BTreeSet::from(expected));
    Ok(())
}

/// How many bytes the body of an answer takes on the wire.
async fn bytes_of(console: &Console, path: &str) -> Result<usize> {
    let headers = "Accept-Encoding: gzip\r\nConnection: close\r\n\r\n";
    let client = console.client();
    let mut stream = client.begin(&format!("GET {path}"), headers).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(2000)]).to_lowercase();
    ensure!(
        head.starts_with("http/1.1 200 ") && head.contains("content-encoding: gzip"),
        "{path}: {head}"
    );
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    Ok(answer.len() - end.context("no body")? - 4)
}

/// Scripts, styles and pictures that any page names, as browsers load them.
#[tokio::test]
async fn the_whole_client_takes_at_most_50_kb() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let host = console.site.psql("SELECT id FROM hosts").await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    let mut files = BTreeSet::new();
    let host = format!("/hosts/{host}");
    for path in PAGES.into_iter().chain([&*host, "/sign-in", "/nowhere"]) {
        let page = client.get(path).await?;
        let links = page.body.split(['"', '\'']);
        let links = links.filter(|link| link.starts_with("/assets/") || link.ends_with(".svg"));
        files.extend(links.map(str::to_owned));
    }
    assert_eq!(files.len(), 8, "{files:?}");
    let mut total = 0;
    for file in files {
        total += bytes_of(&console, &file).await?;
    }
    assert!(total <= 50_000, "{total} bytes");
    Ok(())
}
