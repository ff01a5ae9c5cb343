//! What must be refused: the classes of the OWASP list that concern a console.

use anyhow::Result;
use svc_store::{LinkKind, Role};

use crate::support::{Console, seed_hosts};

const PAGES: [&str; 7] = [
    "/",
    "/hosts",
    "/approvals",
    "/tokens",
    "/activity",
    "/service",
    "/people",
];
const NIL: &str = "00000000-0000-4000-8000-000000000000";

#[tokio::test]
async fn strangers_see_no_page_and_change_nothing() -> Result<()> {
    let console = Console::start().await?;
    let stranger = console.client();
    assert_eq!(stranger.get("/live?view=fleet").await?.status, 401);
    for page in PAGES.iter().copied().chain(["/activity/export?format=csv"]) {
        let answer = stranger.get(page).await?;
        assert_eq!(answer.status, 303, "{page}");
        assert!(
            answer.header("location").unwrap().starts_with("/sign-in"),
            "{page}"
        );
    }
    for (path, _) in changes() {
        let answer = stranger.post(&path, &[]).await?;
        assert_eq!(answer.status, 303, "{path}");
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
        assert_eq!(viewer.post(&path, &[]).await?.status, 403, "{path}");
        if role == Role::Admin {
            assert_eq!(operator.post(&path, &[]).await?.status, 403, "{path}");
        }
    }
    assert_eq!(viewer.get("/people").await?.status, 403);
    Ok(())
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() -> Result<()> {
    let console = Console::start().await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    for headers in [
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
    ] {
        let headers = format!("{headers}{form}");
        let answer = admin
            .send("POST", "/people", &headers, "name=eve&role=admin")
            .await?;
        assert_eq!(answer.status, 403, "{headers}");
    }
    let people = console
        .site
        .psql("SELECT string_agg(name, ',') FROM console.users")
        .await?;
    assert_eq!(people, "ann");
    Ok(())
}

#[tokio::test]
async fn every_response_has_the_headers_that_keep_scripts_and_frames_out() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    for path in ["/", "/sign-in", "/nothing", "/healthz", "/hosts/not-an-id"] {
        let page = client.get(path).await?;
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{path}"
        );
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{path}"
        );
        assert_eq!(page.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(
            page.header("x-content-type-options"),
            Some("nosniff"),
            "{path}"
        );
        assert_eq!(page.header("cache-control"), Some("no-store"), "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn texts_of_agents_and_people_are_shown_as_text() -> Result<()> {
    const EVIL: &str = "<script>alert(1)</script>\"'";
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let evil = EVIL.replace('\'', "''");
    console.site.psql(&format!(
        "UPDATE host_vitals SET fullest_disk_mount_point = '{evil}';
         UPDATE hosts SET hostname = '{evil}', os = '{evil}',
                labels = jsonb_build_object('a', '{evil}'), ip_addresses = ARRAY['{evil}'];
         INSERT INTO host_events (host_id, kind, actor, text) SELECT id, 'note', '{evil}', '{evil}' FROM hosts;
         INSERT INTO enrolment_tokens (hash, label, created_by, labels) VALUES (sha256('x'), '{evil}', '{evil}', jsonb_build_object('a', '{evil}'));
         INSERT INTO agents (host_id, key, status, version, facts) SELECT id, sha256('y'), 'pending', '{evil}', jsonb_build_object('hostname', '{evil}') FROM hosts",
    )).await?;
    let ids = console.site.psql("SELECT (SELECT id FROM hosts), (SELECT id FROM agents WHERE status = 'pending'), (SELECT id FROM enrolment_tokens)").await?;
    let ids: Vec<&str> = ids.split('|').collect();
    let client = console.signed_in("ann", Role::Admin).await?;
    let single = [
        format!("/hosts/{}", ids[0]),
        format!("/agents/{}", ids[1]),
        format!("/tokens/{}", ids[2]),
        "/hosts?q=%3Cscript%3Ealert(1)%3C/script%3E".into(),
        "/activity?subject=%3Cscript%3E".into(),
        "/sign-in?next=%22%3E%3Cscript%3E".into(),
        "/approvals?label=%3Cscript%3E%3D%22".into(),
    ];
    for path in PAGES.iter().map(ToString::to_string).chain(single) {
        let page = client.get(&path).await?;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.has("<script>alert"), "{path}");
    }
    let series = client
        .get(&format!("/hosts/{}/series?range=24h", ids[0]))
        .await?;
    assert_eq!(series.header("content-type"), Some("application/json"));
    Ok(())
}

#[tokio::test]
async fn nonsense_in_addresses_and_forms_is_no_fault_of_the_console() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
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
        let status = client.get(path).await?.status;
        assert!(status < 500, "{path}: {status}");
    }
    let bad = client
        .post("/people", &[("name", "a\0b"), ("role", "viewer")])
        .await?;
    assert!(bad.status < 500, "{bad:?}");
    Ok(())
}

#[tokio::test]
async fn signing_in_never_leads_to_another_site() -> Result<()> {
    let console = Console::start().await?;
    for next in [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
    ] {
        let code = console
            .link("ann", Role::Viewer, LinkKind::SetPassword)
            .await?;
        let password = "correct horse battery";
        let fields = [
            ("code", code.as_str()),
            ("password", password),
            ("again", password),
        ];
        console.client().post("/welcome/password", &fields).await?;
        let fields = [("name", "ann"), ("password", password), ("next", next)];
        let entered = console.client().post("/sign-in", &fields).await?;
        assert_eq!(
            (entered.status, entered.header("location")),
            (303, Some("/")),
            "{next}"
        );
        let query = url::form_urlencoded::byte_serialize(next.as_bytes()).collect::<String>();
        let page = console
            .client()
            .get(&format!("/sign-in?next={query}"))
            .await?;
        assert!(
            !page.has("evil.example") && !page.has("javascript:"),
            "{next}"
        );
    }
    Ok(())
}

/// A session that an attacker knows is worth nothing after its owner signs in again, and a cookie that an
/// attacker chose is never taken over.
#[tokio::test]
async fn a_session_cannot_be_fixed_in_advance() -> Result<()> {
    let console = Console::start().await?;
    let known = console.signed_in("ann", Role::Viewer).await?;
    let code = console.link("ann", Role::Viewer, LinkKind::SignIn).await?;
    let mut victim = known.clone();
    let entered = victim.post("/welcome", &[("code", &code)]).await?;
    victim.keep_cookie(&entered);
    assert_ne!(victim.cookie, known.cookie);
    assert_eq!(victim.get("/hosts").await?.status, 200);
    assert_eq!(known.get("/hosts").await?.status, 303);
    Ok(())
}

/// Links that the console shows lead to its own address, whatever a client or a careless proxy says.
#[tokio::test]
async fn no_page_names_a_host_that_the_client_claims() -> Result<()> {
    let console = Console::start().await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let claims = "X-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\n";
    let mut liar = admin.clone();
    liar.origin = "http://evil.example".into();
    for path in PAGES.into_iter().chain(["/install.sh", "/sign-in"]) {
        let page = liar.send("GET", path, claims, "").await?;
        assert!(
            !page.has("evil.example") && !page.head.contains("evil.example"),
            "{path}: {page:?}"
        );
    }
    let form = "Sec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let headers = format!("{claims}{form}");
    let added = liar.send("POST", "/people", &headers, "name=ben&role=viewer");
    let added = added.await?;
    assert!(!added.has("evil.example"), "{added:?}");
    assert!(
        added.has(&format!("{}/welcome#", admin.origin)),
        "{added:?}"
    );
    Ok(())
}

/// A link in a mail or a picture on another site sends a GET with the person's cookie.
#[tokio::test]
async fn a_get_changes_nothing() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let ids = "SELECT (SELECT id FROM hosts), (SELECT id FROM agents)";
    let ids = console.site.psql(ids).await?;
    let (host, agent) = ids.split_once('|').unwrap();
    for path in [
        format!("/hosts/{host}/retire?reason=x"),
        format!("/hosts/{host}/note?note=x"),
        format!("/agents/{agent}/decide?decision=revoke&reason=x"),
        format!("/hosts/bulk/apply?action=retire&id={host}&reason=x"),
        "/sign-out".into(),
        "/people?name=eve&role=admin".into(),
        "/tokens?label=x&max_uses=1&days=1".into(),
    ] {
        let status = admin.get(&path).await?.status;
        assert!(matches!(status, 200 | 405), "{path}: {status}");
    }
    let untouched = "SELECT (SELECT count(*) FROM hosts WHERE retired_at IS NULL), (SELECT status FROM agents),
                            (SELECT count(*) FROM host_events), (SELECT count(*) FROM console.users),
                            (SELECT count(*) FROM enrolment_tokens), (SELECT count(*) FROM console.sessions)";
    console.site.expect(untouched, "1|active|0|1|0|1").await
}
