//! What must be refused: the classes of the OWASP list that concern a console.

use anyhow::Result;
use svc_common::text::is_hidden;
use svc_store::{LinkKind, Role};
use svc_testkit::assert_contains;

use crate::support::{Console, FORM, PAGES, seed_hostile, seed_hosts, seed_pictures};

const NIL: &str = "00000000-0000-4000-8000-000000000000";

#[tokio::test]
async fn strangers_see_no_page_and_change_nothing() -> Result<()> {
    let console = Console::start().await?;
    let stranger = console.client();
    assert_eq!(stranger.status("/live?view=fleet").await?, 401);
    for page in PAGES.iter().copied().chain(["/activity/export?format=csv"]) {
        let answer = stranger.get(page).await?;
        assert_eq!(answer.status, 303, "{page}");
        let location = answer.header("location").unwrap();
        assert!(location.starts_with("/sign-in"), "{page}: {location}");
    }
    for (path, _) in changes() {
        assert_eq!(stranger.submit(&path, &[]).await?, 303, "{path}");
    }
    Ok(())
}

/// Every path that changes something, and the least role for it.
fn changes() -> Vec<(String, Role)> {
    let operator = [
        "/hosts/bulk",
        "/hosts/bulk/apply",
        "/hosts/ID/note",
        "/hosts/ID/labels",
        "/hosts/ID/retire",
        "/agents/ID/decide",
        "/approvals/approve",
    ];
    let admin = ["/tokens", "/tokens/ID/revoke", "/people", "/people/ann"];
    let of = |paths: &[&str], role| {
        let paths = paths.iter().map(|path| (path.replace("ID", NIL), role));
        paths.collect::<Vec<_>>()
    };
    [of(&operator, Role::Operator), of(&admin, Role::Admin)].concat()
}

#[tokio::test]
async fn each_change_needs_its_role() -> Result<()> {
    let console = Console::start().await?;
    let viewer = console.signed_in("eve", Role::Viewer).await?;
    let operator = console.signed_in("olga", Role::Operator).await?;
    for (path, role) in changes() {
        assert_eq!(viewer.submit(&path, &[]).await?, 403, "{path}");
        if role == Role::Admin {
            assert_eq!(operator.submit(&path, &[]).await?, 403, "{path}");
        }
    }
    assert_eq!(viewer.status("/people").await?, 403);
    Ok(())
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() -> Result<()> {
    let (console, admin) = Console::signed_in_as("ann", Role::Admin).await?;
    for header in [
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        "Origin: https://evil.example",
        "Origin: null",
    ] {
        let headers = format!("{header}\r\n{FORM}");
        let sent = admin.send("POST", "/people", &headers, "name=eve&role=admin");
        assert_eq!(sent.await?.status, 403, "{header}");
    }
    let people = "SELECT string_agg(name, ',') FROM console.users";
    console.site.expect(people, "ann").await
}

#[tokio::test]
async fn every_response_has_the_headers_that_keep_scripts_and_frames_out() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    for path in ["/", "/sign-in", "/nothing", "/healthz", "/hosts/not-an-id"] {
        let page = client.get(path).await?;
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert_contains(
            policy,
            "default-src 'none'; script-src 'self'; style-src 'self'",
        );
        assert_contains(policy, "frame-ancestors 'none'");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(page.header(name), Some(value), "{path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn texts_of_agents_and_people_are_shown_as_text() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    seed_hosts(&console.site, 1).await?;
    let [host, agent, token] = seed_hostile(&console.site, "web-000").await?;
    seed_pictures(&console.site).await?;
    let single = [
        format!("/hosts/{host}"),
        format!("/agents/{agent}"),
        format!("/tokens/{token}"),
        "/hosts?q=%3Cscript%3Ealert(1)%3C/script%3E".into(),
        "/activity?subject=%3Cscript%3E".into(),
        "/sign-in?next=%22%3E%3Cscript%3E".into(),
        "/approvals?label=%3Cscript%3E%3D%22".into(),
    ];
    for path in PAGES.iter().map(ToString::to_string).chain(single) {
        let page = client.get(&path).await?;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.has("<script>") && !page.has("<img"), "{path}");
        let hidden = page.body.find(|c: char| c != '\n' && is_hidden(c));
        assert_eq!(hidden, None, "{path}: {}", page.body);
    }
    for path in [
        format!("/hosts/{host}"),
        format!("/agents/{agent}"),
        "/hosts".into(),
        "/approvals".into(),
        "/activity".into(),
    ] {
        client.get(&path).await?.shows(&["[U+202E][U+200B]"]);
    }
    let series = format!("/hosts/{host}/series?range=24h");
    let series = client.get(&series).await?;
    assert_eq!(series.header("content-type"), Some("application/json"));
    series.shows(&["[U+202E]"]);
    assert!(!series.body.contains(is_hidden), "{}", series.body);
    Ok(())
}

#[tokio::test]
async fn exports_have_no_hidden_characters() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let note = "WITH host AS (INSERT INTO hosts (hostname) VALUES (U&'web\\202e1') RETURNING id)
                INSERT INTO host_events (host_id, kind, actor, text) SELECT id, 'note', 'ann', U&'a\\200bb' FROM host";
    console.site.psql(note).await?;
    let export = |format| format!("/activity/export?kind=note&format={format}");
    let csv = client.get(&export("csv")).await?;
    csv.shows(&["web[U+202E]1", "a[U+200B]b"]);
    let ndjson = client.get(&export("ndjson")).await?;
    assert!(ndjson.body.is_ascii(), "{}", ndjson.body);
    let row: serde_json::Value = serde_json::from_str(&ndjson.body)?;
    assert_eq!(row["subject"], "web\u{202e}1");
    Ok(())
}

#[tokio::test]
async fn labels_with_invisible_characters_are_refused() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    let labels = [("labels", "team=w\u{200b}eb")];
    let refused = client.post(&format!("/hosts/{id}/labels"), &labels).await?;
    assert_eq!(refused.status, 400);
    refused.shows(&["invisible characters"]);
    Ok(())
}

#[tokio::test]
async fn nonsense_in_addresses_and_forms_is_no_fault_of_the_console() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    for path in [
        "/hosts?q=%00",
        "/hosts?after=x~y&sort=disk",
        &format!("/hosts?sort=disk&after={NIL}~x"),
        &format!("/hosts?sort=offline&after={NIL}~nan"),
        "/activity?before=9_9_9&actor=%00",
        "/activity?before=x",
        "/hosts?q=%F0%9F%98%80%25_",
        "/activity/export?format=xml",
        "/approvals?token=x&label=%3D",
        "/tokens/x",
        "/hosts/x/series",
    ] {
        let status = client.status(path).await?;
        assert!(status < 500, "{path}: {status}");
    }
    let form = [("name", "a\0b"), ("role", "viewer")];
    assert!(client.submit("/people", &form).await? < 500);
    Ok(())
}

#[tokio::test]
async fn signing_in_never_leads_to_another_site() -> Result<()> {
    const PASSWORD: &str = "correct horse battery";
    let console = Console::start().await?;
    let client = console.client();
    let code = console.link("ann", Role::Viewer, LinkKind::SetPassword);
    let code = code.await?;
    let fields = [
        ("code", &*code),
        ("password", PASSWORD),
        ("again", PASSWORD),
    ];
    client.post("/welcome/password", &fields).await?;
    for next in [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "/\t/evil.example",
        "evil.example",
        "javascript:alert(1)",
    ] {
        let fields = [("name", "ann"), ("password", PASSWORD), ("next", next)];
        let entered = client.post("/sign-in", &fields).await?;
        let to = (entered.status, entered.header("location"));
        assert_eq!(to, (303, Some("/")), "{next}");
        let query = url::form_urlencoded::byte_serialize(next.as_bytes()).collect::<String>();
        let page = client.get(&format!("/sign-in?next={query}")).await?;
        let led = page.has("evil.example") || page.has("javascript:");
        assert!(!led, "{next}");
    }
    Ok(())
}

/// A session that an attacker knows is worth nothing after its owner signs in again, and a cookie that an
/// attacker chose is never taken over.
#[tokio::test]
async fn a_session_cannot_be_fixed_in_advance() -> Result<()> {
    let console = Console::start().await?;
    let known = console.signed_in("ann", Role::Viewer).await?;
    let mut chosen = console.client();
    chosen.cookie = Some(format!("console={}", "A".repeat(43)));
    for mut victim in [known.clone(), chosen] {
        let before = victim.cookie.clone();
        let code = console.link("ann", Role::Viewer, LinkKind::SignIn).await?;
        let entered = victim.post("/welcome", &[("code", &code)]).await?;
        victim.keep_cookie(&entered);
        assert_ne!(victim.cookie, before);
        assert_eq!(victim.status("/hosts").await?, 200);
    }
    assert_eq!(known.status("/hosts").await?, 303);
    Ok(())
}

/// Links that the console shows lead to its own address, whatever a client or a careless proxy says.
#[tokio::test]
async fn no_page_names_a_host_that_the_client_claims() -> Result<()> {
    let (_console, admin) = Console::signed_in_as("ann", Role::Admin).await?;
    let claims = "X-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\n";
    let mut liar = admin.clone();
    liar.origin = "http://evil.example".into();
    for path in PAGES.into_iter().chain(["/install.sh", "/sign-in"]) {
        let page = liar.send("GET", path, claims, "").await?;
        let named = page.has("evil.example") || page.head.contains("evil.example");
        assert!(!named, "{path}: {page:?}");
    }
    let headers = format!("{claims}Sec-Fetch-Site: same-origin\r\n{FORM}");
    let added = liar.send("POST", "/people", &headers, "name=ben&role=viewer");
    let added = added.await?;
    assert!(!added.has("evil.example"), "{added:?}");
    added.shows(&[&format!("{}/welcome#", admin.origin)]);
    Ok(())
}

/// A link in a mail or a picture on another site sends a GET with the person's cookie.
#[tokio::test]
async fn a_get_changes_nothing() -> Result<()> {
    let (console, admin) = Console::signed_in_as("ann", Role::Admin).await?;
    seed_hosts(&console.site, 1).await?;
    let ids = "SELECT (SELECT id FROM hosts), (SELECT id FROM agents)";
    let ids = console.site.psql(ids).await?;
    let (host, agent) = ids.split_once('|').unwrap();
    for path in [
        format!("/hosts/{host}/retire?reason=x"),
        format!("/hosts/{host}/note?note=x"),
        format!("/agents/{agent}/decide?decision=revoke&reason=x"),
        format!("/hosts/bulk/apply?action=retire&id={host}&reason=x"),
        "/sign-out".into(),
        "/me/sessions?session=others".into(),
        "/people?name=eve&role=admin".into(),
        "/tokens?label=x&max_uses=1&days=1".into(),
    ] {
        let status = admin.status(&path).await?;
        assert!(matches!(status, 200 | 303 | 405), "{path}: {status}");
    }
    let untouched = "SELECT (SELECT count(*) FROM hosts WHERE retired_at IS NULL), (SELECT status FROM agents),
                            (SELECT count(*) FROM host_events), (SELECT count(*) FROM console.users),
                            (SELECT count(*) FROM enrolment_tokens), (SELECT count(*) FROM console.sessions)";
    console.site.expect(untouched, "1|active|0|1|0|1").await
}
