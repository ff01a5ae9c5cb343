//! What must be refused: the classes of the OWASP list that concern a console.

use anyhow::Result;
use svc_store::{LinkKind, Role};
use svc_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

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
                labels = jsonb_build_object('{evil}', '{evil}'), ip_addresses = ARRAY['{evil}'];
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
async fn guessing_passwords_is_slowed_down_and_does_not_end_sessions() -> Result<()> {
    let console = Console::start().await?;
    let signed_in = console.signed_in("ann", Role::Viewer).await?;
    let stranger = console.client();
    // All at once: on a slow machine, guesses one after the other would be slow by themselves.
    let mut guesses = tokio::task::JoinSet::new();
    for guess in 0..12 {
        let stranger = stranger.clone();
        guesses.spawn(async move {
            let password = format!("guess number {guess}");
            let fields = [("name", "ann"), ("password", password.as_str())];
            stranger.post("/sign-in", &fields).await
        });
    }
    let answers = guesses.join_all().await;
    let limited = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(|page| page.status == 429));
    assert!(limited.count() >= 5, "{answers:?}");
    assert_eq!(signed_in.get("/").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn large_bodies_and_heads_are_refused() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    let large = "x".repeat(300 * 1024);
    assert_eq!(
        client.post("/tokens", &[("label", &large)]).await?.status,
        413
    );
    let head = format!("X-Large: {}\r\n", "x".repeat(200 * 1024));
    let refused = client.send("GET", "/", &head, "").await;
    assert!(refused.is_err() || refused.is_ok_and(|page| page.status == 431));
    assert_eq!(client.get("/").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_request_that_is_never_finished_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let mut slow = TcpStream::connect(console.address).await?;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await?;
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
    Ok(())
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    let mut slow = TcpStream::connect(console.address).await?;
    let cookie = client.cookie.clone().unwrap();
    let head = format!(
        "POST /tokens HTTP/1.1\r\nHost: {}\r\nOrigin: {}\r\nCookie: {cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nlabel=",
        console.origin.trim_start_matches("http://"),
        console.origin
    );
    slow.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
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
