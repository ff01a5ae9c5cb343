//! The dashboards and alerts in deploy/, against what an instance exposes and what the documents say.

use std::{
    collections::BTreeSet, fs, net::SocketAddr, path::PathBuf, process::Stdio, time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use svc_ingest::config::Timing;
use svc_testkit::{Site, eventually, get};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{documented_metrics, repository};

const DASHBOARDS: [&str; 2] = ["operators", "fleet"];

fn deploy(path: &str) -> PathBuf {
    repository::path("deploy").join(path)
}

fn rules() -> Result<String> {
    Ok(fs::read_to_string(deploy("prometheus/rules.yml"))?)
}

/// The values after `key: ` in a YAML file.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let line = line.trim().trim_start_matches("- ").trim_start_matches('{');
        let (_, value) = line.split_once(key)?;
        Some(value.trim_matches(['\'', ' ', '}']))
    })
}

fn dashboard(name: &str) -> Result<Value> {
    let text = fs::read_to_string(deploy(&format!("grafana/{name}.json")))?;
    serde_json::from_str(&text).with_context(|| name.to_owned())
}

/// Every expression of a dashboard.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets
        .filter_map(|target| Some(target["expr"].as_str()?.to_owned()))
        .collect()
}

/// The names of our metrics in an expression, as the table of metrics has them.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = ["svc_ingest_", "console_", "process_"];
    let ours = words.filter(|word| ours.iter().any(|prefix| word.starts_with(prefix)));
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect()
}

#[test]
fn every_metric_of_dashboards_and_alerts_exists() -> Result<()> {
    // Tests of their own compare these tables with what runs, in both directions.
    let documented = documented_metrics::names()?;
    let of_the_console = documented_metrics::names_of_the_console()?;
    let documented = &documented | &of_the_console;
    let rules = rules()?;
    let mut expressions: Vec<String> = values(&rules, "expr: ").map(str::to_owned).collect();
    ensure!(expressions.len() > 20, "no rules were found");
    for name in DASHBOARDS {
        let found = self::expressions(&dashboard(name)?);
        ensure!(found.len() > 10, "{name} has no panels");
        expressions.extend(found);
    }
    for expression in &expressions {
        for metric in metrics(expression) {
            assert!(
                documented.contains(&metric),
                "{metric} does not exist: {expression}"
            );
        }
    }
    Ok(())
}

#[test]
fn every_panel_uses_the_data_source_that_the_reader_chooses() -> Result<()> {
    for name in DASHBOARDS {
        let dashboard = dashboard(name)?;
        let variables = dashboard["templating"]["list"]
            .as_array()
            .context("no variables")?;
        let chosen =
            |variable: &Value| variable["name"] == "datasource" && variable["type"] == "datasource";
        assert!(
            variables.iter().any(chosen),
            "{name} has no variable for its data source"
        );
        let panels = dashboard["panels"].as_array().context("no panels")?.iter();
        let panels: Vec<&Value> = panels.filter(|panel| panel["type"] != "row").collect();
        ensure!(panels.len() > 10, "{name} has no panels");
        for panel in panels {
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{}",
                panel["title"]
            );
        }
    }
    Ok(())
}

#[test]
fn every_alert_has_a_test_and_a_runbook_entry_that_it_links_to() -> Result<()> {
    let rules = rules()?;
    let tests = ["rules_test.yml", "rules_slow_test.yml"];
    let tests = tests.map(|file| fs::read_to_string(deploy(&format!("prometheus/{file}"))));
    let tests = tests.into_iter().collect::<Result<String, _>>()?;
    let runbooks = repository::text("docs/runbooks.md");
    let alerts: Vec<&str> = values(&rules, "alert: ").collect();
    let links: Vec<&str> = values(&rules, "runbook_url: ").collect();
    ensure!(alerts.len() > 20, "no alerts were found");
    assert_eq!(alerts.len(), links.len());
    for (alert, link) in alerts.iter().zip(links) {
        assert_eq!(link, format!("docs/runbooks.md#{}", alert.to_lowercase()));
        assert!(
            runbooks.contains(&format!("### {alert}\n")),
            "docs/runbooks.md has no entry for {alert}"
        );
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(tests.contains(&fires), "no test in which {alert} fires");
    }
    let entries = runbooks
        .lines()
        .filter_map(|line| line.strip_prefix("### SvcIngest"));
    assert_eq!(
        entries.count(),
        alerts.len(),
        "an entry of docs/runbooks.md has no alert"
    );
    Ok(())
}

async fn promtool(arguments: &[&str], input: &str) -> Result<()> {
    let mut promtool = Command::new("promtool");
    promtool.args(arguments).current_dir(deploy("prometheus"));
    promtool
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = promtool.spawn().context("scripts/deps installs promtool")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {shown}");
    Ok(())
}

#[tokio::test]
async fn alerts_fire_in_promtools_tests_and_only_then() -> Result<()> {
    promtool(&["check", "rules", "rules.yml"], "").await?;
    promtool(
        &["test", "rules", "rules_test.yml", "rules_slow_test.yml"],
        "",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_the_names_and_units_of_all_metrics() -> Result<()> {
    let site = Site::new().await?;
    let often = |timing: &mut Timing| timing.fleet_gauges = Duration::from_secs(1);
    let (instance, agent) = site.instance().timing(often).with_agent(&site).await?;
    agent.heartbeat().await?.report_acked(1..=2).await?;
    let page = fleet_gauges(instance.http).await?;
    promtool(&["check", "metrics"], &page).await?;
    instance.stop().await
}

/// A lock makes the first read fail. The period is longer than this test.
#[tokio::test(flavor = "multi_thread")]
async fn gauges_of_the_fleet_are_read_again_soon_after_a_failure() -> Result<()> {
    let site = Site::new().await?;
    let lock = site.hold("LOCK metric_gaps").await?;
    let rarely = |timing: &mut Timing| timing.fleet_gauges = Duration::from_hours(1);
    let instance = site.instance().timing(rarely).start().await?;
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
    site.becomes(waiting, "1").await?;
    site.becomes(waiting, "0").await?;
    lock.release().await?;
    fleet_gauges(instance.http).await?;
    instance.stop().await
}

/// The page of metrics, as soon as the reporter has read the gauges of the fleet.
async fn fleet_gauges(http: SocketAddr) -> Result<String> {
    let mut last = Ok(String::new());
    let read = eventually(
        "the reporter has read the gauges of the fleet",
        async || {
            last = get(http, "/metrics").await.map(|answer| answer.body);
            let page = last.as_ref().ok();
            page.is_some_and(|page| page.contains("\nsvc_ingest_fleet_instances 1"))
        },
    );
    let read = read.await;
    let page = last?;
    read.with_context(|| {
        let lines = page.lines().filter(|line| line.contains("fleet"));
        format!("the last page: {:?}", lines.collect::<Vec<_>>())
    })?;
    Ok(page)
}
