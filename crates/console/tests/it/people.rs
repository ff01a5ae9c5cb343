//! Signing in, sessions, roles, one-time links.

use anyhow::Result;
use svc_store::{LinkKind, Role};

use crate::support::Console;

const PASSWORD: &str = "correct horse battery";

#[tokio::test]
async fn without_people_the_page_says_how_to_add_the_first() -> Result<()> {
    let console = Console::start().await?;
    let page = console.client().get("/sign-in").await?;
    assert!(
        page.has("svc-console user add NAME --role admin"),
        "{page:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_link_sets_a_password_once_and_the_password_signs_in() -> Result<()> {
    let console = Console::start().await?;
    let code = console
        .link("ann", Role::Admin, LinkKind::SetPassword)
        .await?;
    let mut client = console.client();
    let asked = client.post("/welcome", &[("code", &code)]).await?;
    assert!(asked.has("You are <strong>ann</strong>"), "{asked:?}");
    let set = async |password, again| {
        let fields = [
            ("code", code.as_str()),
            ("password", password),
            ("again", again),
        ];
        console.client().post("/welcome/password", &fields).await
    };
    assert_eq!(set("short", "short").await?.status, 422);
    assert_eq!(set(PASSWORD, "another horse").await?.status, 422);
    assert_eq!(set(PASSWORD, PASSWORD).await?.status, 303);
    assert_eq!(
        set(PASSWORD, PASSWORD).await?.status,
        401,
        "a link works once"
    );
    let wrong = [("name", "ann"), ("password", "wrong horse battery")];
    let refused = client.post("/sign-in", &wrong).await?;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("set-cookie"), None);
    let right = [
        ("name", "ann"),
        ("password", PASSWORD),
        ("next", "/hosts?q=a"),
    ];
    let entered = client.post("/sign-in", &right).await?;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, Some("/hosts?q=a"))
    );
    let cookie = entered.header("set-cookie").unwrap().to_owned();
    for attribute in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    client.keep_cookie(&entered);
    assert_eq!(client.get("/hosts").await?.status, 200);
    let stored = console
        .site
        .psql("SELECT password_hash FROM console.users")
        .await?;
    assert!(stored.starts_with("$argon2id$"), "{stored}");
    Ok(())
}

#[tokio::test]
async fn signing_in_makes_a_new_session_and_signing_out_ends_it() -> Result<()> {
    let console = Console::start().await?;
    let mut client = console.client();
    // A session that an attacker fixed in advance is not taken over.
    client.cookie = Some(format!("console={}", "A".repeat(43)));
    let code = console.link("ann", Role::Viewer, LinkKind::SignIn).await?;
    let entered = client.post("/welcome", &[("code", &code)]).await?;
    assert!(!entered.header("set-cookie").unwrap().contains("AAAAAAAA"));
    client.keep_cookie(&entered);
    assert_eq!(client.get("/").await?.status, 200);
    let left = client.post("/sign-out", &[]).await?;
    assert_eq!(left.header("location"), Some("/sign-in"));
    assert!(left.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(
        client.get("/").await?.status,
        303,
        "the old cookie is worth nothing"
    );
    Ok(())
}

#[tokio::test]
async fn an_expired_an_idle_and_a_disabled_persons_session_end() -> Result<()> {
    let console = Console::start().await?;
    for (name, statement) in [
        ("ann", "UPDATE console.sessions SET expires_at = now()"),
        (
            "ben",
            "UPDATE console.sessions SET seen_at = now() - interval '3 hours'",
        ),
        (
            "cy",
            "UPDATE console.users SET disabled_at = now() WHERE name = 'cy'",
        ),
    ] {
        let client = console.signed_in(name, Role::Admin).await?;
        assert_eq!(client.get("/hosts").await?.status, 200);
        console.site.psql(statement).await?;
        let page = client.get("/hosts?q=x").await?;
        assert_eq!(
            page.header("location"),
            Some("/sign-in?next=%2Fhosts%3Fq%3Dx"),
            "{name}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_admin_adds_people_changes_roles_and_disables_but_not_himself() -> Result<()> {
    let console = Console::start().await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let added = admin
        .post("/people", &[("name", "ben"), ("role", "viewer")])
        .await?;
    assert!(added.has("/welcome#"), "{added:?}");
    assert_eq!(
        admin
            .post("/people", &[("name", "ben"), ("role", "viewer")])
            .await?
            .status,
        409
    );
    assert_eq!(
        admin
            .post("/people", &[("name", "B n"), ("role", "viewer")])
            .await?
            .status,
        400
    );
    let ben = console.signed_in("ben", Role::Viewer).await?;
    assert_eq!(ben.get("/people").await?.status, 403);
    let role = [("do", "role"), ("role", "admin")];
    admin.post("/people/ben", &role).await?;
    assert_eq!(admin.post("/people/nobody", &role).await?.status, 404);
    let people = admin.get("/people").await?;
    assert!(people.has("<option selected>admin"), "{people:?}");
    assert_eq!(
        ben.get("/people").await?.status,
        200,
        "the role changes at once"
    );
    admin.post("/people/ben", &[("do", "disable")]).await?;
    assert_eq!(ben.get("/people").await?.status, 303);
    assert_eq!(
        admin
            .post("/people/ann", &[("do", "disable")])
            .await?
            .status,
        409
    );
    let seen = console
        .site
        .psql("SELECT string_agg(kind, ', ' ORDER BY id) FROM console.events WHERE actor = 'ann'")
        .await?;
    assert!(
        seen.contains("user added")
            && seen.contains("role changed")
            && seen.contains("user disabled"),
        "{seen}"
    );
    Ok(())
}
