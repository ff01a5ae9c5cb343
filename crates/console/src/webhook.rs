//! `POST /api/v1/notes`: a short note of an agent about its host, such as "deployed 4.2".
//!
//! The agent proves itself with its JWT. The console verifies it with keys that a background task has
//! fetched, never by a call inside the request, and then reads the agent's status: a JWT outlives the
//! revocation of its agent by up to 24 hours.

use std::{net::IpAddr, sync::LazyLock, time::Duration};

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
};
use serde::Deserialize;
use svc_common::rate::{Keyed, Rate};
use svc_store::{AgentId, AgentStatus};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{address::network, error::AppError, session::Client, state::App};

const NOTE_BYTES: usize = 500;
/// One answer for every reason that concerns the JWT.
const STRANGER: AppError = AppError::Unauthorized("The JWT is not one of an active agent.");

/// Of one agent: a deployment writes some notes at once, and not one a second all day.
static NOTES: LazyLock<Keyed<Uuid>> =
    LazyLock::new(|| Keyed::new(Rate::new(Duration::from_secs(10), 10)));
/// Of one address without a valid JWT.
static STRANGERS: LazyLock<Keyed<IpAddr>> =
    LazyLock::new(|| Keyed::new(Rate::new(Duration::from_secs(1), 30)));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    text: String,
}

pub async fn note(
    State(app): State<App>,
    Client(address): Client,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, &'static str), AppError> {
    let outcome = accept(&app, address, &headers, &body).await;
    app.metrics.webhook(match &outcome {
        Ok(()) => "accepted",
        Err(AppError::Unauthorized(_)) => "unauthorized",
        Err(AppError::Limited(_)) => "limited",
        Err(_) => "failed",
    });
    outcome.map(|()| (StatusCode::CREATED, "noted\n"))
}

async fn accept(
    app: &App,
    address: IpAddr,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), AppError> {
    let Some(agent) = bearer(headers).and_then(|jwt| app.verifier.verify(jwt)) else {
        let limited = STRANGERS.take(network(address), Instant::now());
        return Err(limited.map_or_else(AppError::Limited, |()| STRANGER));
    };
    NOTES
        .take(agent, Instant::now())
        .map_err(AppError::Limited)?;
    let text = parse(body)?;
    let found = app.store.agent_show(AgentId(agent)).await?;
    let active = found.filter(|found| found.agent.status == AgentStatus::Active);
    let found = active.ok_or(STRANGER)?.agent;
    let actor = format!("agent {}", found.hostname);
    app.store
        .console_note_add(found.host_id, Some(found.id), &actor, &text)
        .await?;
    Ok(())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, jwt) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(jwt)
}

fn parse(body: &[u8]) -> Result<String, AppError> {
    let form = "send {\"text\": \"…\"} with 1 to 500 bytes of text";
    let note: Note = serde_json::from_slice(body).map_err(|_| AppError::bad_request(form))?;
    let text = note.text.trim();
    let printable = text.chars().all(|letter| !letter.is_control());
    match (1..=NOTE_BYTES).contains(&text.len()) && printable {
        true => Ok(text.to_owned()),
        false => Err(AppError::bad_request(form)),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn notes_are_short_printable_texts() {
        assert_eq!(
            parse(br#"{"text": " deployed 4.2 "}"#).unwrap(),
            "deployed 4.2"
        );
        let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(501));
        for bad in [
            "",
            "{}",
            r#"{"text": ""}"#,
            r#"{"text": "a\nb"}"#,
            r#"{"text": "a", "x": 1}"#,
            &long,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
