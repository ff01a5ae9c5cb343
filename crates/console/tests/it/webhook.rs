//! Notes of agents, by JWT.

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{AUTO, FakeAgent, eventually, machine, token};

use crate::support::{Console, Page};

async fn note(console: &Console, jwt: &str, body: &str) -> Result<Page> {
    let headers = format!("Authorization: Bearer {jwt}\r\nContent-Type: application/json\r\n");
    console
        .client()
        .send("POST", "/api/v1/notes", &headers, body)
        .await
}

const BODY: &str = r#"{"text": "deployed 4.2"}"#;

#[tokio::test]
async fn an_active_agents_note_appears_and_a_revoked_agents_is_refused() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let secret = token(&console.site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent.jwt(instance.grpc, &secret).await?;
    eventually("the keys are fetched", async || {
        note(&console, &jwt, BODY)
            .await
            .is_ok_and(|answer| answer.status == 201)
    })
    .await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    let page = client.get(&format!("/hosts/{id}")).await?;
    assert!(
        page.has("deployed 4.2") && page.has("by agent web-1"),
        "{page:?}"
    );
    assert_eq!(note(&console, &jwt, "{}").await?.status, 400);
    let (head, signature) = jwt.rsplit_once('.').unwrap();
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    for bad in ["", "x", "a.b.c", forged.as_str(), &"x".repeat(5000)] {
        assert_eq!(note(&console, bad, BODY).await?.status, 401, "{bad}");
    }
    console
        .site
        .psql("UPDATE agents SET status = 'revoked'")
        .await?;
    assert_eq!(
        note(&console, &jwt, BODY).await?.status,
        401,
        "its JWT still verifies"
    );
    Ok(())
}

#[tokio::test]
async fn the_keys_stay_in_use_while_the_service_is_away_and_notes_are_limited() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let secret = token(&console.site, AUTO).await?;
    let jwt = FakeAgent::on(machine(1))?
        .jwt(instance.grpc, &secret)
        .await?;
    eventually("the keys are fetched", async || {
        note(&console, &jwt, BODY)
            .await
            .is_ok_and(|answer| answer.status == 201)
    })
    .await?;
    instance.stop().await?;
    assert_eq!(note(&console, &jwt, BODY).await?.status, 201);
    let mut limited = false;
    for _ in 0..20 {
        limited |= note(&console, &jwt, BODY).await?.status == 429;
    }
    assert!(limited, "20 notes at once");
    Ok(())
}
