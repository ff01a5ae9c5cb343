//! Decisions of people about real agents, and tokens that admit them.

use anyhow::{Context, Result};
use svc_store::Role;
use svc_testkit::{FakeAgent, MANUAL, is_active, machine, token};

use crate::support::Console;

#[tokio::test]
async fn an_operator_approves_a_waiting_agent_and_is_named_in_the_record() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut waiting = agent.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let queue = client.get("/approvals").await?;
    assert!(queue.has("web-1") && queue.has("Review"), "{queue:?}");
    let id = console.site.psql("SELECT id FROM agents").await?;
    let page = client.get(&format!("/agents/{id}")).await?;
    assert!(page.has("May this machine report?"), "{page:?}");
    let form = [
        ("decision", "approve"),
        ("reason", "rack 7"),
        ("from", "approvals"),
    ];
    let decided = client.post(&format!("/agents/{id}/decide"), &form).await?;
    assert_eq!(decided.header("location"), Some("/approvals"));
    let answer = waiting.answer().await?;
    assert!(is_active(&answer), "{answer:?}");
    let record = "SELECT actor || ' ' || reason FROM agent_events WHERE to_status = 'active'";
    console.site.expect(record, "olga rack 7").await?;
    let again = client.post(&format!("/agents/{id}/decide"), &form).await?;
    assert_eq!(again.status, 409);
    assert!(again.has("is active, not pending"), "{again:?}");
    let revoked = client
        .post(
            &format!("/agents/{id}/decide"),
            &[("decision", "revoke"), ("reason", "stolen")],
        )
        .await?;
    assert_eq!(revoked.status, 303);
    console
        .site
        .expect("SELECT status FROM agents", "revoked")
        .await
}

#[tokio::test]
async fn a_conflict_shows_both_machines_and_asks_what_the_new_one_is() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let secret = token(&console.site, MANUAL).await?;
    let first = FakeAgent::on(machine(1))?;
    let mut waiting = first.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let id = console.site.psql("SELECT id FROM agents").await?;
    // Many at once: a page in between, then the decisions.
    let preview = client.post("/approvals/approve", &[("id", &id)]).await?;
    assert!(preview.has("Approve 1 agent"), "{preview:?}");
    client
        .post("/approvals/approve", &[("id", &id), ("confirmed", "yes")])
        .await?;
    waiting.answer().await?;
    let mut renamed = machine(1);
    renamed.hostname = "web-1-new".into();
    let second = FakeAgent::on(renamed)?;
    let mut waiting = second.open(instance.grpc, &secret).await??;
    waiting.answer().await?;
    let second = console
        .site
        .psql("SELECT id FROM agents WHERE status = 'pending'")
        .await?;
    let page = client.get(&format!("/agents/{second}")).await?;
    for text in [
        "Two agents, side by side",
        "web-1-new",
        "The same machine, reinstalled.",
        "Another machine.",
    ] {
        assert!(page.has(text), "{text}: {page:?}");
    }
    let unclear = client
        .post(
            &format!("/agents/{second}/decide"),
            &[("decision", "approve")],
        )
        .await?;
    assert_eq!(
        unclear.status, 409,
        "approval must say what becomes of the first"
    );
    let skipped = client
        .post("/approvals/approve", &[("id", &second)])
        .await?;
    assert!(
        skipped.has("1 of the selection are left out"),
        "{skipped:?}"
    );
    client
        .post(
            &format!("/agents/{second}/decide"),
            &[("decision", "replace")],
        )
        .await?;
    let statuses = "SELECT string_agg(status, ' ' ORDER BY created_at) FROM agents";
    console.site.expect(statuses, "revoked active").await
}

/// Otherwise its hosts would have labels that nobody can change: every change of their labels would be refused.
#[tokio::test]
async fn a_token_with_labels_that_no_host_may_have_is_refused_at_once() -> Result<()> {
    let console = Console::start().await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
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
            ("days", "7"),
            ("labels", labels.as_str()),
        ];
        let refused = admin.post("/tokens", &form).await?;
        assert_eq!(refused.status, 400, "{labels}");
        assert!(refused.has(problem), "{labels}: {refused:?}");
    }
    let tokens = console.site.psql("SELECT count(*) FROM enrolment_tokens");
    assert_eq!(tokens.await?, "0");
    Ok(())
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
    let secret = shown
        .body
        .split("<code id=\"secret\">")
        .nth(1)
        .context("no secret")?;
    let secret = secret.split('<').next().context("no end")?.to_owned();
    assert!(svc_ingest::enrol::EnrolmentToken::parse(&secret).is_ok());
    assert!(shown.has(&format!("{}/install.sh", console.origin)));
    let agent = FakeAgent::on(machine(3))?;
    agent.open(instance.grpc, &secret).await??.answer().await?;
    let id = console.site.psql("SELECT id FROM enrolment_tokens").await?;
    let page = admin.get(&format!("/tokens/{id}")).await?;
    assert!(
        page.has("1 of 2") && page.has("web-3") && !page.has(&secret),
        "{page:?}"
    );
    for bad in [
        [("label", ""), ("max_uses", "1")],
        [("label", "x"), ("max_uses", "0")],
    ] {
        assert_eq!(admin.post("/tokens", &bad).await?.status, 400);
    }
    assert!(page.has("name=\"reason\""), "{page:?}");
    let form = [("agents", "yes"), ("reason", "leaked <b>here</b>")];
    admin.post(&format!("/tokens/{id}/revoke"), &form).await?;
    console
        .site
        .expect("SELECT state FROM enrolment_token_states", "revoked")
        .await?;
    console
        .site
        .expect("SELECT status FROM agents", "rejected")
        .await?;
    let event = "SELECT actor || ' ' || reason FROM agent_events WHERE to_status = 'rejected'";
    let reason = "enrolment token revoked: leaked <b>here</b>";
    console.site.expect(event, &format!("ann {reason}")).await?;
    let activity = admin.get("/activity").await?;
    for text in [
        "leaked &#60;b&#62;here&#60;/b&#62; (1 agent changed)",
        "enrolment token revoked: leaked &#60;b&#62;here&#60;/b&#62;",
    ] {
        assert!(activity.has(text), "{text}: {activity:?}");
    }
    Ok(())
}
