//! Decisions of people about real agents, and tokens that admit them.

use anyhow::{Context, Result};
use svc_common::enrolment_token::EnrolmentToken;
use svc_store::Role;
use svc_testkit::{FakeAgent, is_active, machine};

use crate::support::{Console, Page};

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
    let seen = seen(&asked)?;
    let form = [
        ("decision", "approve"),
        reason,
        ("from", "approvals"),
        ("seen", seen),
    ];
    let decided = client.post(&decide, &form).await?;
    assert_eq!(decided.header("location"), Some("/approvals"));
    let answer = waiting.answer().await?;
    assert!(is_active(&answer), "{answer:?}");
    let record = "SELECT actor || ' ' || reason FROM agent_events WHERE to_status = 'active'";
    console.site.expect(record, "olga rack 7").await?;
    let again = client.post(&decide, &form).await?;
    assert_eq!(again.status, 409);
    again.shows(&["is active, not pending", "Nothing was changed"]);
    let silent = client.submit(&decide, &[("decision", "revoke")]).await?;
    assert_eq!(silent, 400, "a revocation needs a reason");
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
    let result = approve(&preview.hidden()).await?;
    result.shows(&["1 agent approved"]);
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
    let seen = ("seen", seen(&page)?);
    let unclear = [("decision", "approve"), seen];
    let unclear = client.submit(&decide, &unclear).await?;
    assert_eq!(unclear, 409, "approval must say what becomes of the first");
    let skipped = approve(&[("id", &second)]).await?;
    skipped.shows(&["1 of the selection are left out"]);
    let replaced = client
        .submit(&decide, &[("decision", "replace"), seen])
        .await?;
    assert_eq!(replaced, 303);
    let answer = waiting.answer().await?;
    assert!(is_active(&answer), "{answer:?}");
    let statuses = "SELECT string_agg(status, ' ' ORDER BY created_at) FROM agents";
    console.site.expect(statuses, "revoked active").await
}

/// The hash of what a page shows.
fn seen(page: &Page) -> Result<&str> {
    let fields = page.hidden();
    let field = fields.iter().find(|(name, _)| *name == "seen");
    field.map(|(_, value)| *value).context("no hash")
}

/// Hosts `new-<n>` of a token, each with a pending agent. Returns the token.
async fn seed_waiting(console: &Console, count: u32) -> Result<String> {
    let sql = format!(
        "WITH token AS (
            INSERT INTO enrolment_tokens (hash, label, max_uses) VALUES (sha256('racks'), 'racks', 100000) RETURNING id),
         new AS (INSERT INTO hosts (hostname) SELECT 'new-' || n FROM generate_series(1, {count}) AS n RETURNING id, hostname)
         INSERT INTO agents (host_id, key, status, token_id, facts)
         SELECT new.id, sha256(hostname::bytea), 'pending', token.id, jsonb_build_object('hostname', hostname) FROM new, token"
    );
    console.site.psql(&sql).await?;
    console.site.psql("SELECT id FROM enrolment_tokens").await
}

const STATUSES: &str = "SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) FROM (SELECT status, count(*) AS n FROM agents GROUP BY 1) all_of_them";

#[tokio::test]
async fn a_plain_newcomer_is_approved_by_one_click_on_the_list() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let token = seed_waiting(&console, 2).await?;
    let twin = "INSERT INTO agents (host_id, key, status) SELECT id, sha256('twin'), 'pending' FROM hosts WHERE hostname = 'new-2'";
    console.site.psql(twin).await?;
    let list = format!("/approvals?token={token}");
    let page = client.get(&list).await?;
    let buttons = page.body.matches("name=\"approve\"").count();
    assert_eq!(buttons, 1, "two agents of one machine need a look");
    let (_, button) = page
        .body
        .split_once("name=\"approve\" value=\"")
        .context("no button")?;
    let (seen, rest) = button.split_once('"').context("no value")?;
    let (_, path) = rest.split_once("formaction=\"").context("no address")?;
    let (path, _) = path.split_once('"').context("no address")?;
    let form = [("approve", seen), ("from", "approvals"), ("token", &*token)];
    let facts =
        "UPDATE agents SET facts = facts || '{\"os\": \"another\"}' WHERE status = 'pending'";
    console.site.psql(facts).await?;
    let changed = client.post(path, &form).await?;
    assert_eq!(changed.status, 409);
    changed.shows(&["has changed since it was shown", "another"]);
    console.site.expect(STATUSES, "pending 3").await?;
    let seen = self::seen(&changed)?;
    let form = [("approve", seen), ("from", "approvals"), ("token", &*token)];
    let approved = client.post(path, &form).await?;
    assert_eq!(approved.header("location"), Some(&*list));
    console.site.expect(STATUSES, "active 1, pending 2").await
}

#[tokio::test]
async fn a_replacement_revokes_only_the_agent_that_was_shown() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    site.psql(
        "INSERT INTO hosts (hostname) VALUES ('web-1');
         INSERT INTO agents (host_id, key, status, version) SELECT id, sha256('a'), 'active', 'a' FROM hosts;
         INSERT INTO agents (host_id, key, status, version, pending_reason)
         SELECT id, sha256(name::bytea), 'pending', name, 'conflict' FROM hosts, (VALUES ('b'), ('c')) AS names(name)",
    )
    .await?;
    let id = async |name: &str| {
        site.psql(&format!("SELECT id FROM agents WHERE version = '{name}'"))
            .await
    };
    let (second, third) = (id("b").await?, id("c").await?);
    let stale = client.get(&format!("/agents/{third}")).await?;
    let fresh = client.get(&format!("/agents/{second}")).await?;
    let replace = async |agent: &str, seen: &str| {
        let form = [("decision", "replace"), ("seen", seen)];
        client.post(&format!("/agents/{agent}/decide"), &form).await
    };
    assert_eq!(replace(&second, seen(&fresh)?).await?.status, 303);
    let refused = replace(&third, seen(&stale)?).await?;
    assert_eq!(refused.status, 409);
    refused.shows(&["has changed since it was shown", &second]);
    let statuses = "SELECT string_agg(version || ' ' || status, ', ' ORDER BY version) FROM agents";
    site.expect(statuses, "a revoked, b active, c pending")
        .await?;
    assert_eq!(replace(&third, "").await?.status, 409, "nothing was shown");
    assert_eq!(replace(&third, seen(&refused)?).await?.status, 303);
    site.expect(statuses, "a revoked, b revoked, c active")
        .await
}

#[tokio::test]
async fn everything_that_waits_under_a_token_is_approved_in_one_decision() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    let token = seed_waiting(&console, 600).await?;
    // One conflicts, and one came by another way.
    site.psql(
        "INSERT INTO agents (host_id, key, status) SELECT id, sha256('holder'), 'active' FROM hosts WHERE hostname = 'new-7';
         INSERT INTO hosts (hostname) VALUES ('other');
         INSERT INTO agents (host_id, key, status) SELECT id, sha256('other'), 'pending' FROM hosts WHERE hostname = 'other'",
    )
    .await?;
    let form = [("scope", "all"), ("token", &*token)];
    let preview = client.post("/approvals/approve", &form).await?;
    preview.shows(&[
        "Approve 599 agents",
        "1 that match are left out",
        "and 549 more",
    ]);
    site.expect(STATUSES, "active 1, pending 601").await?;
    // This one comes after the preview.
    site.psql(
        "WITH late AS (INSERT INTO hosts (hostname) VALUES ('late') RETURNING id)
         INSERT INTO agents (host_id, key, status, token_id) SELECT late.id, sha256('late'), 'pending', t.id FROM late, enrolment_tokens t",
    )
    .await?;
    let mut form = preview.hidden();
    form.push(("reason", "new racks"));
    let result = client.post("/approvals/approve", &form).await?;
    assert_eq!(result.status, 200);
    result.shows(&["599 agents approved"]);
    site.expect(STATUSES, "active 600, pending 3").await?;
    let recorded =
        "SELECT count(*) FROM agent_events WHERE actor = 'olga' AND reason = 'new racks'";
    site.expect(recorded, "599").await
}

#[tokio::test]
async fn agents_are_found_by_the_fingerprint_that_their_machine_prints() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    seed_waiting(&console, 30).await?;
    let key = "SELECT encode(key, 'hex') FROM agents a JOIN hosts h ON h.id = host_id WHERE hostname = 'new-17'";
    let key = console.site.psql(key).await?;
    let grouped = format!("{}+{}+{}", &key[..4], &key[4..8], &key[8..12]);
    for path in [
        format!("/approvals?key={key}"),
        format!("/approvals?key={grouped}"),
        format!("/hosts?q={key}"),
        format!("/hosts?q=key:{}", &key[..12]),
    ] {
        let page = client.get(&path).await?;
        page.shows(&[">new-17</a>"]);
        assert_eq!(
            page.body.matches("<td class=\"name\">").count(),
            1,
            "{path}"
        );
    }
    let unknown = format!("/hosts?q=key:{}", "0".repeat(64));
    client.get(&unknown).await?.shows(&["No host matches"]);
    client
        .get("/approvals?key=new-17")
        .await?
        .shows(&["not understood"]);
    Ok(())
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
        "<td class=\"wrap\">leaked &#60;b&#62;here&#60;/b&#62;</td>",
        "enrolment token revoked: leaked &#60;b&#62;here&#60;/b&#62;",
    ]);
    Ok(())
}

#[tokio::test]
async fn an_agents_page_shows_its_keys_and_who_used_a_retired_one() -> Result<()> {
    let (console, client) = Console::signed_in_as("vera", Role::Viewer).await?;
    seed_waiting(&console, 2).await?;
    let keys = "UPDATE agents SET key_change_at = now();
        INSERT INTO agent_keys (key, agent_id, retired_at, used_at, used_from)
        SELECT sha256(id::text::bytea), id, NULL::timestamptz, NULL::timestamptz, NULL::inet FROM agents
         UNION ALL
        SELECT sha256(key), id, now(), now(), '203.0.113.7' FROM agents WHERE facts ->> 'hostname' = 'new-1'";
    console.site.psql(keys).await?;
    let page = async |name: &str| {
        let id = format!("SELECT id FROM agents WHERE facts ->> 'hostname' = '{name}'");
        let id = console.site.psql(&id).await?;
        client.get(&format!("/agents/{id}")).await
    };
    let copied = page("new-1").await?;
    copied.shows(&[
        "a new one was asked for",
        "not used yet",
        "Retired keys",
        "203.0.113.7",
    ]);
    let other = page("new-2").await?;
    other.shows(&["Key since", "not used yet"]);
    assert!(!other.has("Retired keys"));
    Ok(())
}
