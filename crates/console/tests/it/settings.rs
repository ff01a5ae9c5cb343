//! The page of settings: rules are added, changed and removed after a preview, for a reason, by operators.

use anyhow::Result;
use svc_store::Role;

use crate::support::*;

const ADD: &str = "/settings?action=add&labels=env%3Dprod&share=100&interval=10s&ignored_mounts=%2Fmnt%2F*&log=debug&log_for=2h";

#[tokio::test]
async fn an_operator_adds_changes_and_removes_a_rule_after_a_preview() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    seed_hosts(site, 6).await?;
    client.get("/settings").await?.shows(&["No rules yet"]);
    for wrong in [
        "action=add&interval=10s",
        "action=add&all=yes&labels=env%3Dprod&interval=10s",
        "action=add&all=yes&interval=soon",
        "action=add&all=yes&interval=1s",
        "action=add&all=yes",
        "action=add&all=yes&interval=10s&share=x",
        "action=add&all=yes&interval=10s&share=101",
        "action=remove",
        "action=burn",
    ] {
        let status = client.status(&format!("/settings?{wrong}")).await?;
        assert_eq!(status, 400, "{wrong}");
    }
    assert_eq!(client.status("/settings?action=remove&rule=9").await?, 404);
    let preview = client.get(ADD).await?;
    preview.shows(&[
        "Add this rule?",
        "<strong>3 hosts</strong>",
        "+0.2 reports a second",
    ]);
    site.expect("SELECT count(*) FROM settings_rules", "0")
        .await?;
    let mut form = preview.hidden();
    assert_eq!(client.submit("/settings", &form).await?, 400, "a reason");
    form.push(("reason", "noisy"));
    assert_eq!(client.submit("/settings", &form).await?, 303);
    let id = site.psql("SELECT id FROM settings_rules").await?;
    let page = client.get("/settings").await?;
    page.shows(&["interval: 10s", "ignored_mounts: /mnt/*", "env=prod"]);
    let edit = client.get(&format!("/settings?rule={id}")).await?;
    edit.shows(&[
        "value=\"10s\"",
        "value=\"/mnt/*\"",
        "<option selected>debug",
    ]);
    let host = site
        .psql("SELECT id FROM hosts WHERE hostname = 'web-000'")
        .await?;
    let host = client.get(&format!("/hosts/{host}")).await?;
    host.shows(&["10s", &format!("rule {id}</a>"), "takes no settings"]);
    let remove = format!("/settings?action=remove&rule={id}");
    let preview = client.get(&remove).await?;
    let mut form = preview.hidden();
    form.push(("reason", "over"));
    assert_eq!(client.submit("/settings", &form).await?, 303);
    site.expect("SELECT count(*) FROM settings_rules", "0")
        .await?;
    let activity = client.get("/activity").await?;
    activity.shows(&["settings added", "settings removed", "noisy", "olga"]);
    Ok(())
}

#[tokio::test]
async fn a_rule_without_room_needs_a_second_decision() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    seed_hosts(site, 6).await?;
    site.psql(
        "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at, load)
         VALUES (gen_random_uuid(), 'k', 'h', '1', 'a', 'b', now() + interval '1 hour',
                 '{\"agents\": 6, \"cores\": 0.0001, \"cores_used\": 0.01, \"heartbeat_seconds\": 30}')",
    )
    .await?;
    let preview = client.get(ADD).await?;
    preview.shows(&["have room for 0.0", "name=\"force\""]);
    let mut form = preview.hidden();
    form.push(("reason", "why"));
    let refused = client.post("/settings", &form).await?;
    assert_eq!(refused.status, 400);
    assert!(refused.has("+0.2 reports a second; the instances have room for 0.0"));
    form.push(("force", "yes"));
    assert_eq!(client.submit("/settings", &form).await?, 303);
    site.expect("SELECT count(*) FROM settings_rules", "1")
        .await
}

#[tokio::test]
async fn a_viewer_sees_rules_and_changes_none() -> Result<()> {
    let (console, operator) = Console::signed_in_as("olga", Role::Operator).await?;
    seed_hosts(&console.site, 2).await?;
    let preview = operator.get(ADD).await?;
    let mut form = preview.hidden();
    form.push(("reason", "why"));
    assert_eq!(operator.submit("/settings", &form).await?, 303);
    let viewer = console.signed_in("vic", Role::Viewer).await?;
    let page = viewer.get(ADD).await?;
    assert!(page.has("interval: 10s") && !page.has("action=\"/settings\""));
    assert_eq!(viewer.submit("/settings", &form).await?, 403);
    console
        .site
        .expect("SELECT count(*) FROM settings_rules", "1")
        .await
}
