//! `svc-ingest host`.

use anyhow::Result;

use super::{agent, complaint, done, each, id, json, rival};
use crate::harness::Site;

#[tokio::test]
async fn hosts_are_listed_and_shown_with_what_they_are_known_by() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", r#"{"site": "berlin"}"#).await?;
    agent(&site, '2', "web-2", "{}").await?;
    done(&site, &["agent", "approve", &one]).await?;
    rival(&site, '3', &one).await?;
    let list = json(&site, &["host", "list"]).await?;
    assert_eq!(each(&list, "hostname"), ["web-1", "web-2"]);
    assert_eq!(
        each(&list, "presence"),
        ["offline", "null"],
        "of the active agent"
    );
    assert_eq!(each(&list, "agent_id"), [one.as_str(), "null"]);
    assert_eq!(list[0]["memory_total_bytes"], 8_589_934_592_i64);
    assert_eq!(
        list[0]["cpu_percent"],
        serde_json::Value::Null,
        "no sample yet"
    );
    assert_eq!(
        (&list[0]["agent_count"], &list[0]["pending_count"]),
        (&2.into(), &1.into())
    );
    let labelled = json(&site, &["host", "list", "--label", "site=berlin"]).await?;
    assert_eq!(each(&labelled, "hostname"), ["web-1"]);

    let shown = json(&site, &["host", "show", "web-1"]).await?;
    assert_eq!(shown["id"], id('b', '1'));
    assert_eq!(each(&shown["identifiers"], "kind"), ["machine"]);
    assert_eq!(each(&shown["agents"], "status"), ["pending", "active"]);
    let table = done(&site, &["host", "show", "1111"]).await?;
    assert!(
        table.contains("site=berlin") && table.contains("conflict with"),
        "{table}"
    );
    let nobody = complaint(&site, 1, &["host", "show", "web"]).await?;
    assert!(nobody.contains("svc-ingest host list"), "{nobody}");
    Ok(())
}

#[tokio::test]
async fn retiring_a_host_ends_its_agents_after_a_yes() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    done(&site, &["agent", "approve", &one]).await?;
    rival(&site, '2', &one).await?;
    agent(&site, '3', "web-3", "{}").await?;
    let refused = complaint(&site, 2, &["host", "retire", "web-1"]).await?;
    assert!(refused.contains("--yes"), "{refused}");
    let retired = json(
        &site,
        &["host", "retire", "web-1", "--yes", "--reason", "sold"],
    )
    .await?;
    assert_eq!(retired["agents_ended"], 2);
    assert!(retired["retired_at"].is_string());
    let statuses = "SELECT string_agg(status, ' ' ORDER BY id) FROM agents";
    assert_eq!(site.psql(statuses).await?, "revoked rejected pending");
    let why = "SELECT DISTINCT decided_by, decision_reason FROM agents WHERE status <> 'pending'";
    assert_eq!(site.psql(why).await?, "ann|sold");
    assert_eq!(
        each(&json(&site, &["host", "list"]).await?, "hostname"),
        ["web-3"]
    );
    let all = json(&site, &["host", "list", "--retired"]).await?;
    assert_eq!(each(&all, "hostname"), ["web-1", "web-3"]);
    Ok(())
}
