//! Decisions of people about real agents, and tokens that admit them.

use anyhow::{Context, Result};
use svc_common::enrolment_token::EnrolmentToken;
use svc_store::Role;
use svc_testkit::{FakeAgent, is_active, machine};

use crate::support::Console;

#[tokio::test]
async fn an_operator_approves_a_waiting_agent_and_is_named_in_the_record() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut waiting = console.waiting(&instance, agent).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let queue = client.get("/approvals").await?;
    queue.shows(&["web-1", "Review"]);
    let id = console.site.psql("SELECT id FROM agents").await?;
    let (page, decide) = (format!("/agents/{id}"), format!("/agents/{id}/decide"));
    let asked = client.get(&page).await?;
    asked.shows(&["May this machine report?"]);
    let reason = ("reason", "rack 7");
    let form = [("decision", "approve"), reason, ("from", "approvals")];
    let decided = client.post(&decide, &form).await?;
    assert_eq!(decided.header("location"), Some("/approvals"));
    let answer = waiting.answer().await?;
    assert!(is_active(&answer), "{answer:?}");
    let record = "SELECT actor || ' ' || reason FROM agent_events WHERE to_status = 'active'";
    console.site.expect(record, "olga rack 7").await?;
    let again = client.post(&decide, &form).await?;
    assert_eq!(again.status, 409);
    again.shows(&["is active, not pending"]);
    let form = [("decision", "revoke"), ("reason", "stolen")];
    assert_eq!(client.submit(&decide, &form).await?, 303);
    let revoked = client.get(&page).await?;
    revoked.shows(&["revoked", "stolen", "by olga"]);
    Ok(())
}

#[tokio::test]
async fn a_conflict_shows_both_machines_and_asks_what_the_new_one_is() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let first = FakeAgent::on(machine(1))?;
    let mut waiting = console.waiting(&instance, first).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let approve = async |fields: &[(&str, &str)]| client.post("/approvals/approve", fields).await;
    let id = console.site.psql("SELECT id FROM agents").await?;
    // Many at once: a page in between, then the decisions.
    let preview = approve(&[("id", &id)]).await?;
    preview.shows(&["Approve 1 agent"]);
    approve(&preview.hidden()).await?;
    waiting.answer().await?;
    let mut renamed = machine(1);
    renamed.hostname = "web-1-new".into();
    let second = FakeAgent::on(renamed)?;
    let mut waiting = console.waiting(&instance, second).await?;
    let second = "SELECT id FROM agents WHERE status = 'pending'";
    let second = console.site.psql(second).await?;
    let page = client.get(&format!("/agents/{second}")).await?;
    page.shows(&[
        "Two agents, side by side",
        "web-1-new",
        "value=\"replace\" required> <span><strong>The same machine, reinstalled.",
        "value=\"new-host\"> <span><strong>Another machine.",
    ]);
    let decide = format!("/agents/{second}/decide");
    let unclear = client.submit(&decide, &[("decision", "approve")]).await?;
    assert_eq!(unclear, 409, "approval must say what becomes of the first");
    let skipped = approve(&[("id", &second)]).await?;
    skipped.shows(&["1 of the selection are left out"]);
    let replaced = client.submit(&decide, &[("decision", "replace")]).await?;
    assert_eq!(replaced, 303);
    let answer = waiting.answer().await?;
    assert!(is_active(&answer), "{answer:?}");
    let statuses = "SELECT string_agg(status, ' ' ORDER BY created_at) FROM agents";
    console.site.expect(statuses, "revoked active").await
}

/// Otherwise its hosts would have labels that nobody can change: every change of their labels would be refused.
#[tokio::test]
async fn a_token_with_labels_that_no_host_may_have_is_refused_at_once() -> Result<()> {
    let (console, admin) = Console::signed_in_as("ann", Role::Admin).await?;
    let many: Vec<String> = (0..65).map(|n| format!("k{n}=")).collect();
    for (labels, problem) in [
        (format!("{}=x", "k".repeat(64)), "has at most 63 letters"),
        ("rack no=4".to_owned(), "begins with a letter or digit"),
        (format!("rack={}", "x".repeat(256)), "longer than 255 bytes"),
        (many.join(","), "more than 64 labels"),
    ] {
        let form = [
            ("label", "racks"),
            ("max_uses", "2"),
            ("labels", labels.as_str()),
        ];
        let refused = admin.post("/tokens", &form).await?;
        assert_eq!(refused.status, 400, "{labels}");
        refused.shows(&[problem]);
    }
    let tokens = "SELECT count(*) FROM enrolment_tokens";
    console.site.expect(tokens, "0").await
}

#[tokio::test]
async fn a_token_of_the_console_admits_machines_and_is_shown_once() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let form = [
        ("label", "racks"),
        ("max_uses", "2"),
        ("days", "7"),
        ("labels", "env=prod"),
    ];
    let shown = admin.post("/tokens", &form).await?;
    let secret = shown.body.split("<code id=\"secret\">").nth(1);
    let secret = secret.and_then(|rest| rest.split('<').next());
    let secret = secret.context("no secret")?;
    assert!(EnrolmentToken::parse(secret).is_ok());
    let agent = FakeAgent::on(machine(3))?;
    agent.open(instance.grpc, secret).await??.answer().await?;
    let id = console.site.psql("SELECT id FROM enrolment_tokens").await?;
    let page = admin.get(&format!("/tokens/{id}")).await?;
    page.shows(&["1 of 2", "web-3", "name=\"reason\""]);
    assert!(!page.has(secret), "{page:?}");
    for (label, uses) in [("", "1"), ("x", "0")] {
        let bad = [("label", label), ("max_uses", uses)];
        assert_eq!(admin.submit("/tokens", &bad).await?, 400);
    }
    let form = [("agents", "yes"), ("reason", "leaked <b>here</b>")];
    admin.post(&format!("/tokens/{id}/revoke"), &form).await?;
    let state = "SELECT state FROM enrolment_token_states";
    console.site.expect(state, "revoked").await?;
    let event = "SELECT actor || ' ' || reason FROM agent_events WHERE to_status = 'rejected'";
    let reason = "ann enrolment token revoked: leaked <b>here</b>";
    console.site.expect(event, reason).await?;
    let activity = admin.get("/activity").await?;
    activity.shows(&[
        "leaked &#60;b&#62;here&#60;/b&#62; (1 agent changed)",
        "enrolment token revoked: leaked &#60;b&#62;here&#60;/b&#62;",
    ]);
    Ok(())
}
