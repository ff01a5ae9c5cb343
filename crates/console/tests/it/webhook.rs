//! Notes of agents, by JWT.

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{ActiveAgent, Proxy, Site, eventually};

use crate::support::{Client, Console, Page};

const BODY: &str = r#"{"text": "deployed 4.2"}"#;

/// The status of a note's answer.
async fn note(console: &Console, jwt: &str, body: &str) -> Result<u16> {
    Ok(sent(console, jwt, body).await?.status)
}

async fn sent(console: &Console, jwt: &str, body: &str) -> Result<Page> {
    let headers = format!("Authorization: Bearer {jwt}\r\nContent-Type: application/json\r\n");
    let client = console.client();
    let sent = client.send("POST", "/api/v1/notes", &headers, body);
    sent.await
}

/// Waits until a note is accepted: until the console has fetched the keys.
async fn noted(console: &Console, jwt: &str) -> Result<()> {
    eventually("the keys are fetched", async || {
        let status = note(console, jwt, BODY).await;
        status.is_ok_and(|status| status == 201)
    })
    .await
}

#[tokio::test]
async fn an_active_agents_note_appears_and_a_revoked_agents_is_refused() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let agent = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let jwt = agent.jwt;
    noted(&console, &jwt).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    let page = client.get(&format!("/hosts/{id}")).await?;
    page.shows(&["deployed 4.2", "by agent web-1"]);
    assert_eq!(note(&console, &jwt, "{}").await?, 400);
    let (head, signature) = jwt.rsplit_once('.').unwrap();
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    for bad in ["", "x", "a.b.c", forged.as_str(), &"x".repeat(5000)] {
        assert_eq!(note(&console, bad, BODY).await?, 401, "{bad}");
    }
    let revoke = "UPDATE agents SET status = 'revoked'";
    console.site.psql(revoke).await?;
    let status = note(&console, &jwt, BODY).await?;
    assert_eq!(status, 401, "its JWT still verifies");
    Ok(())
}

#[tokio::test]
async fn the_keys_stay_in_use_while_the_service_is_away_and_notes_are_limited() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let agent = ActiveAgent::new(&console.site, instance.grpc, 1).await?;
    let jwt = agent.jwt;
    noted(&console, &jwt).await?;
    instance.stop().await?;
    assert_eq!(note(&console, &jwt, BODY).await?, 201);
    let mut limited = None;
    for _ in 0..20 {
        let answer = sent(&console, &jwt, BODY).await?;
        limited = limited.or((answer.status == 429).then_some(answer));
    }
    let limited = limited.expect("20 notes at once");
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
    limited.shows(&["Try again in"]);
    let stranger = sent(&console, "x", BODY).await?;
    assert_eq!(stranger.header("www-authenticate"), Some("Bearer"));
    stranger.shows(&["The JWT is not one of an active agent."]);
    Ok(())
}

/// The line about keys on the page of the service.
async fn keys_shown(client: &Client) -> Result<String> {
    let page = client.get("/service").await?;
    let line = page.body.split("<dt>Signing keys</dt>").nth(1);
    let line = line.and_then(|rest| rest.split("</dd>").next());
    Ok(line.unwrap_or_default().to_owned())
}

/// The document goes away before the first fetch and again later, while the service changes its key.
#[tokio::test]
async fn the_webhook_recovers_by_itself_when_the_keys_can_be_fetched_again() -> Result<()> {
    const PROBLEM: &str = "Connection refused";
    let site = Site::new().await?;
    let first = site.instance().start().await?;
    let proxy = Proxy::start(vec![first.http]).await?;
    proxy.refuse(true)?;
    let url = format!("http://{}/.well-known/jwks.json", proxy.address());
    let console = Console::on(site, &[("CONSOLE_JWKS_URL", url)]).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let old = ActiveAgent::new(&console.site, first.grpc, 1).await?.jwt;
    assert_eq!(note(&console, &old, BODY).await?, 401);
    let shows = async |parts: &[&str], problem: bool| {
        eventually("the page says how old the keys are", async || {
            let line = keys_shown(&client).await.unwrap_or_default();
            parts.iter().all(|part| line.contains(part)) && line.contains(PROBLEM) == problem
        })
        .await
    };
    shows(&["not fetched yet"], true).await?;
    proxy.refuse(false)?;
    shows(&["fetched <time"], false).await?;
    assert_eq!(note(&console, &old, BODY).await?, 201);

    proxy.refuse(true)?;
    first.stop().await?;
    let other_key = console.site.path("other_key.pem");
    let second = console
        .site
        .instance()
        .set("INGEST_JWT_KEY_FILE", other_key);
    let second = second.start().await?;
    let new = ActiveAgent::new(&console.site, second.grpc, 2).await?.jwt;
    // A key that is not known makes the console look again, and it finds nobody.
    assert_eq!(note(&console, &new, BODY).await?, 401);
    shows(&["fetched <time", "verified with these keys"], true).await?;
    assert_eq!(note(&console, &old, BODY).await?, 201);
    let fleet = client.get("/").await?;
    fleet.shows(&["cannot be fetched"]);

    proxy.set_targets(vec![second.http]);
    proxy.refuse(false)?;
    shows(&["fetched <time"], false).await?;
    assert_eq!(note(&console, &new, BODY).await?, 201);
    assert!(!client.get("/").await?.has("cannot be fetched"));
    Ok(())
}
