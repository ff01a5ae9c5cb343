//! Signing in, sessions, roles, one-time links.

use anyhow::{Context, Result};
use svc_store::{LinkKind, Role};

use crate::support::{Console, seed_hosts};

const PASSWORD: &str = "correct horse battery";

#[tokio::test]
async fn without_people_the_page_says_how_to_add_the_first() -> Result<()> {
    let console = Console::start().await?;
    let page = console.client().get("/sign-in").await?;
    page.shows(&["svc-console user add NAME --role admin"]);
    Ok(())
}

#[tokio::test]
async fn a_link_sets_a_password_once_and_the_password_signs_in() -> Result<()> {
    let console = Console::start().await?;
    let code = console.link("ann", Role::Admin, LinkKind::SetPassword);
    let code = code.await?;
    let mut client = console.client();
    let asked = client.post("/welcome", &[("code", &code)]).await?;
    asked.shows(&["You are <strong>ann</strong>"]);
    let set = async |password, again| {
        let fields = [("code", &*code), ("password", password), ("again", again)];
        console.client().submit("/welcome/password", &fields).await
    };
    assert_eq!(set("short", "short").await?, 422);
    assert_eq!(set(PASSWORD, "another horse").await?, 422);
    assert_eq!(set(PASSWORD, PASSWORD).await?, 303);
    assert_eq!(set(PASSWORD, PASSWORD).await?, 401, "a link works once");
    let wrong = [("name", "ann"), ("password", "wrong horse battery")];
    let refused = client.post("/sign-in", &wrong).await?;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("set-cookie"), None);
    let to = ("next", "/hosts?q=a");
    let right = [("name", "ann"), ("password", PASSWORD), to];
    let entered = client.post("/sign-in", &right).await?;
    assert_eq!(entered.status, 303);
    assert_eq!(entered.header("location"), Some(to.1));
    let cookie = entered.header("set-cookie").unwrap();
    for attribute in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    client.keep_cookie(&entered);
    assert_eq!(client.status("/hosts").await?, 200);
    let stored = "SELECT left(password_hash, 10) FROM console.users";
    console.site.expect(stored, "$argon2id$").await
}

#[tokio::test]
async fn signing_in_makes_a_new_session_and_signing_out_ends_it() -> Result<()> {
    let console = Console::start().await?;
    let first = console.signed_in("ann", Role::Viewer).await?;
    let second = console.signed_in("ann", Role::Viewer).await?;
    assert_ne!(first.cookie, second.cookie);
    let left = first.post("/sign-out", &[]).await?;
    assert_eq!(left.header("location"), Some("/sign-in"));
    assert!(left.header("set-cookie").unwrap().contains("Max-Age=0"));
    let old = first.status("/").await?;
    assert_eq!(old, 303, "the old cookie is worth nothing");
    assert_eq!(second.status("/").await?, 200);
    Ok(())
}

#[tokio::test]
async fn an_expired_an_idle_and_a_disabled_persons_session_end() -> Result<()> {
    let console = Console::start().await?;
    for (name, statement) in [
        ("ann", "sessions SET expires_at = now()"),
        ("ben", "sessions SET seen_at = now() - interval '3 hours'"),
        ("cy", "users SET disabled_at = now() WHERE name = 'cy'"),
    ] {
        let client = console.signed_in(name, Role::Admin).await?;
        assert_eq!(client.status("/hosts").await?, 200);
        let ending = format!("UPDATE console.{statement}");
        console.site.psql(&ending).await?;
        let page = client.get("/hosts?q=x").await?;
        let location = page.header("location");
        assert_eq!(location, Some("/sign-in?next=%2Fhosts%3Fq%3Dx"), "{name}");
    }
    Ok(())
}

/// What each role may do is in `attacks`.
#[tokio::test]
async fn each_role_is_offered_only_what_it_may_do() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let agent = console.site.psql("SELECT id FROM agents").await?;
    let (agent, decide) = (
        format!("/agents/{agent}"),
        format!("/agents/{agent}/decide"),
    );
    for (name, role) in [
        ("vera", Role::Viewer),
        ("olga", Role::Operator),
        ("ann", Role::Admin),
    ] {
        let client = console.signed_in(name, role).await?;
        for (least, path, offer) in [
            (Role::Operator, "/hosts", "<summary>Change hosts</summary>"),
            (Role::Operator, &*agent, &*decide),
            (Role::Admin, "/tokens", "action=\"/tokens\""),
            (Role::Admin, "/hosts", "href=\"/people\""),
        ] {
            let page = client.get(path).await?;
            assert_eq!(page.has(offer), role >= least, "{name} {path} {offer}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_admin_adds_people_changes_roles_and_disables_but_not_himself() -> Result<()> {
    let (console, admin) = Console::signed_in_as("ann", Role::Admin).await?;
    let viewer = ("role", "viewer");
    let added = admin.post("/people", &[("name", "ben"), viewer]).await?;
    added.shows(&["/welcome#"]);
    let add = async |name| admin.submit("/people", &[("name", name), viewer]).await;
    assert_eq!(add("ben").await?, 409);
    assert_eq!(add("B n").await?, 400);
    let ben = console.signed_in("ben", Role::Viewer).await?;
    assert_eq!(ben.status("/people").await?, 403);
    let role = [("do", "role"), ("role", "admin")];
    assert_eq!(admin.submit("/people/ben", &role).await?, 303);
    assert_eq!(admin.submit("/people/nobody", &role).await?, 404);
    let people = admin.get("/people").await?;
    people.shows(&["<option selected>admin"]);
    let now = ben.status("/people").await?;
    assert_eq!(now, 200, "the role changes at once");
    let disable = [("do", "disable")];
    assert_eq!(admin.submit("/people/ben", &disable).await?, 303);
    assert_eq!(ben.status("/people").await?, 303);
    assert_eq!(admin.submit("/people/ann", &disable).await?, 409);
    let record = "SELECT string_agg(kind, ', ' ORDER BY id) FROM people_events WHERE actor = 'ann'";
    let recorded = console.site.psql(record).await?;
    for kind in ["user added", "role changed", "user disabled"] {
        assert!(recorded.contains(kind), "{recorded}");
    }
    Ok(())
}

#[tokio::test]
async fn a_form_of_a_session_that_ended_leads_back_to_its_page() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    console.site.psql("DELETE FROM console.sessions").await?;
    let form = "/approvals?label=env%3Dprod";
    for (page, next) in [
        (format!("{}{form}", client.origin), form),
        (format!("{}1/hosts", client.origin), "/"),
        ("https://evil.example/hosts".into(), "/"),
    ] {
        let headers = format!("{}Referer: {page}\r\n", client.same_origin());
        let sent = client.send("POST", "/approvals/approve", &headers, "id=x");
        let sent = sent.await?;
        let location = sent.header("location").context("no address")?;
        let door = client.get(location).await?;
        door.shows(&["The session had ended, so the form was not sent"]);
        let field = door.hidden().into_iter().find(|(name, _)| *name == "next");
        assert_eq!(field, Some(("next", next)), "{page}");
    }
    Ok(())
}
