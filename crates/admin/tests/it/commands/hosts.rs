//! `svc-ingest host`.

use anyhow::Result;
use svc_testkit::{Site, assert_contains};

use super::{
    active_agent, agent, conflict, conflicting_agent, failure_of, id, json, members, output_of,
};

#[tokio::test]
async fn hosts_are_listed_and_shown_with_their_identifiers() -> Result<()> {
    let site = Site::new().await?;
    let one = active_agent(&site, '1', "web-1", r#"{"site": "berlin"}"#).await?;
    agent(&site, '2', "web-2", "{}").await?;
    conflicting_agent(&site, '3', &one).await?;
    let list = json(&site, &["host", "list"]).await?;
    assert_eq!(members(&list, "hostname"), ["web-1", "web-2"]);
    // Of the active agent.
    assert_eq!(members(&list, "presence"), ["offline", "null"]);
    assert_eq!(members(&list, "agent_id"), [one.as_str(), "null"]);
    assert_eq!(list[0]["memory_total_bytes"], 8_589_934_592_i64);
    assert!(list[0]["cpu_percent"].is_null(), "no sample yet");
    assert_eq!(list[0]["agent_count"], 2);
    assert_eq!(list[0]["pending_count"], 1);
    let labelled = json(&site, &["host", "list", "--label", "site=berlin"]).await?;
    assert_eq!(members(&labelled, "hostname"), ["web-1"]);

    let shown = json(&site, &["host", "show", "web-1"]).await?;
    assert_eq!(shown["id"], id('b', '1'));
    assert_eq!(members(&shown["identifiers"], "kind"), ["machine"]);
    assert_eq!(members(&shown["agents"], "status"), ["pending", "active"]);
    let table = output_of(&site, &["host", "show", "1111"]).await?;
    assert_contains(&table, "site=berlin");
    assert_contains(&table, "conflict with");
    let missing = failure_of(&site, 1, &["host", "show", "web"]).await?;
    assert_contains(&missing, "svc-ingest host list");
    Ok(())
}

#[tokio::test]
async fn hidden_characters_of_names_are_shown_by_their_numbers() -> Result<()> {
    let site = Site::new().await?;
    let hostname = "web\u{202e}1\u{200b}";
    active_agent(&site, '1', hostname, "{}").await?;
    for arguments in [
        &["host", "list"][..],
        &["host", "show", "1111"],
        &["agent", "list"],
    ] {
        let shown = output_of(&site, arguments).await?;
        assert_contains(&shown, "web[U+202E]1[U+200B]");
        assert!(!shown.contains(['\u{202e}', '\u{200b}']), "{shown:?}");
    }
    let raw = output_of(&site, &["host", "list", "--output", "json"]).await?;
    assert_contains(&raw, r"web\u202e1\u200b");
    let list = json(&site, &["host", "list"]).await?;
    assert_eq!(members(&list, "hostname"), [hostname]);
    Ok(())
}

#[tokio::test]
async fn retiring_a_host_needs_yes_and_revokes_its_agents() -> Result<()> {
    let site = Site::new().await?;
    conflict(&site).await?;
    agent(&site, '3', "web-3", "{}").await?;
    let refused = failure_of(&site, 2, &["host", "retire", "web-1"]).await?;
    assert_contains(&refused, "--yes");
    let retired = json(
        &site,
        &["host", "retire", "web-1", "--yes", "--reason", "sold"],
    )
    .await?;
    assert_eq!(retired["agents_ended"], 2);
    assert!(retired["retired_at"].is_string());
    let statuses = "SELECT string_agg(status, ' ' ORDER BY id) FROM agents";
    site.expect(statuses, "revoked rejected pending").await?;
    let why = "SELECT DISTINCT decided_by, decision_reason FROM agents WHERE status <> 'pending'";
    site.expect(why, "ann|sold").await?;
    let left = json(&site, &["host", "list"]).await?;
    assert_eq!(members(&left, "hostname"), ["web-3"]);
    let all = json(&site, &["host", "list", "--retired"]).await?;
    assert_eq!(members(&all, "hostname"), ["web-1", "web-3"]);
    Ok(())
}

#[tokio::test]
async fn hosts_are_searched_labelled_and_expired() -> Result<()> {
    let site = Site::new().await?;
    active_agent(&site, '1', "web-1", r#"{"site": "berlin"}"#).await?;
    active_agent(&site, '2', "db-2", "{}").await?;
    for search in [
        ["--search", "EB-"],
        ["--search", "label:site=berlin is:offline"],
        ["--hostname", "web-1"],
    ] {
        let found = json(&site, &[&["host", "list"], &search[..]].concat()).await?;
        assert_eq!(members(&found, "hostname"), ["web-1"], "{search:?}");
    }
    let unknown = failure_of(&site, 2, &["host", "list", "--search", "web is:odd"]).await?;
    assert_contains(&unknown, "is:odd");
    let change = [
        "host", "label", "web-1", "env=prod", "--remove", "site", "--actor", "ann",
    ];
    let labelled = json(&site, &change).await?;
    assert_eq!(labelled["labels"], serde_json::json!({"env": "prod"}));
    let event = "SELECT kind, actor, text FROM host_events";
    site.expect(event, "labels|ann|env=prod, -site").await?;
    let nothing = failure_of(&site, 2, &["host", "label", "web-1"]).await?;
    assert_contains(&nothing, "at least one label");
    let long = "UPDATE agent_state SET presence_since = now() - interval '40 days' WHERE agent_id IN (SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE h.hostname = 'db-2')";
    site.psql(long).await?;
    for (search, found) in [
        ("offline:30d", &["db-2"][..]),
        ("offline:5m", &["db-2"][..]),
        ("offline:0m", &["db-2", "web-1"][..]),
        ("offline:41d", &[][..]),
    ] {
        let hosts = json(&site, &["host", "list", "--search", search]).await?;
        assert_eq!(members(&hosts, "hostname"), found, "{search}");
    }
    let expire = ["host", "expire", "--offline-for", "30d"];
    let blind = failure_of(&site, 2, &expire).await?;
    assert_contains(&blind, "--yes");
    let dry = json(&site, &[&expire[..], &["--dry-run"]].concat()).await?;
    assert_eq!(
        dry,
        serde_json::json!({"would_retire": 1, "first": ["db-2"]})
    );
    let said = output_of(&site, &[&expire[..], &["--dry-run"]].concat()).await?;
    assert_contains(&said, "1 host has been offline for so long: db-2");
    site.expect("SELECT count(*) FROM hosts WHERE retired_at IS NULL", "2")
        .await?;
    let expired = json(&site, &["host", "expire", "--offline-for", "30d", "--yes"]).await?;
    assert_eq!(expired["retired"], 1);
    let left = json(&site, &["host", "list"]).await?;
    assert_eq!(members(&left, "hostname"), ["web-1"]);
    Ok(())
}
