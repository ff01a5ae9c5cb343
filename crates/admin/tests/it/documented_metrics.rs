//! docs/metrics.md against the metrics of a running instance, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use svc_testkit::{Site, http, metric_becomes};

use crate::repository::{path, text, texts};

/// Where metrics are registered, for those that appear only with their first label value.
const SOURCES: [&str; 4] = [
    "crates/front/src",
    "crates/ingest/src",
    "crates/pipeline/src",
    "crates/store/src",
];

/// A row of the table: the metric's type and its labels.
struct Row {
    kind: String,
    labels: String,
}

#[tokio::test]
async fn the_table_of_metrics_names_exactly_what_an_instance_exposes() -> Result<()> {
    let documented = table()?;
    let (_site, instance) = Site::with_instance().await?;
    // The first metrics of the reporter come with its first pass.
    metric_becomes(instance.http, "fleet_instances", |live| live == 1.0).await?;
    let scrape = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n";
    let exposed = exposed(&http(instance.http, scrape).await?.body);
    for (name, kind) in &exposed {
        let row = documented.get(name);
        let row = row.with_context(|| format!("docs/metrics.md does not document {name}"))?;
        assert_eq!(&row.kind, kind, "the type of {name}");
    }
    let sources = sources();
    for (name, row) in &documented {
        let registered = sources.contains(&format!("\"{}\"", registered(name)));
        let labelled = row.labels != "–";
        assert!(
            exposed.contains_key(name) || (labelled && registered),
            "docs/metrics.md documents {name}, which does not exist"
        );
    }
    instance.stop().await
}

/// The names in the table.
pub fn names() -> Result<BTreeSet<String>> {
    Ok(table()?.into_keys().collect())
}

/// The console's: those of docs/console.md, and the database's with its own prefix.
pub fn names_of_the_console() -> Result<BTreeSet<String>> {
    let console = text("docs/console.md");
    let rows = console
        .lines()
        .filter(|line| line.starts_with("| `console_"));
    let first = rows.filter_map(|line| line.split('|').nth(1));
    let own = first
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned);
    let database = names()?.into_iter();
    let database = database.filter_map(|name| {
        let name = name.strip_prefix("svc_ingest_")?;
        name.starts_with("database_")
            .then(|| format!("console_{name}"))
    });
    Ok(own.chain(database).collect())
}

/// The table between the markers, by name.
fn table() -> Result<BTreeMap<String, Row>> {
    let document = text("docs/metrics.md");
    let (_, rest) = document
        .split_once("<!-- metrics -->")
        .context("no begin")?;
    let (table, _) = rest.split_once("<!-- /metrics -->").context("no end")?;
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<(String, Row)> = rows
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, name, kind, _unit, labels, _in, meaning, action, _] = cells[..] else {
                panic!("a row has seven cells: {line}");
            };
            assert!(!meaning.is_empty() && !action.is_empty(), "{line}");
            let row = Row {
                kind: kind.to_owned(),
                labels: labels.to_owned(),
            };
            (name.trim_matches('`').to_owned(), row)
        })
        .collect();
    let names: BTreeSet<&String> = rows.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names.len(),
        rows.len(),
        "a metric stands in the table twice"
    );
    Ok(rows.into_iter().collect())
}

/// What the page announces, under the names that queries use.
fn exposed(page: &str) -> BTreeMap<String, String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            (format!("{name}{suffix}"), kind.to_owned())
        })
        .collect()
}

/// A metric's name as the source code registers it: without prefix and suffix.
fn registered(name: &str) -> &str {
    let name = name.strip_prefix("svc_ingest_").unwrap_or(name);
    name.strip_suffix("_total").unwrap_or(name)
}

fn sources() -> String {
    let texts = SOURCES.iter().flat_map(|folder| texts(path(folder), "rs"));
    texts.map(|(_, text)| text).collect()
}
