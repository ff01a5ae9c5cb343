//! From what a person types to the one thing that is meant.
//!
//! A name that fits several things is never guessed at: the candidates are listed.

use anyhow::{Context, bail};
use svc_store::{AgentRecord, HostId, HostRecord, Page, Store, StoreError, TokenId, TokenRecord};

use crate::enrol::EnrolmentToken;

/// How many candidates are worth listing.
const CANDIDATES: u32 = 10;

/// The characters of an id that tables show; enough to name it by.
pub fn short(id: impl std::fmt::Display) -> String {
    id.to_string().chars().take(8).collect()
}

pub async fn agent(store: &Store, name: &str) -> anyhow::Result<AgentRecord> {
    let found = store.agents_find(name, CANDIDATES).await?;
    let exact = |agent: &AgentRecord| [&agent.id.to_string(), &agent.key].contains(&&lower(name));
    let shown = |agent: &AgentRecord| {
        format!(
            "{} ({}, {})",
            agent.id,
            agent.hostname,
            agent.status.as_str()
        )
    };
    one("agent", name, found, exact, shown)
}

pub async fn host(store: &Store, name: &str) -> anyhow::Result<HostId> {
    let found = store.hosts_find(name, CANDIDATES).await?;
    let exact = |host: &HostRecord| host.id.to_string() == lower(name);
    let shown = |host: &HostRecord| {
        let retired = host.retired_at.map_or("", |_| ", retired");
        format!("{} ({}{retired})", host.id, host.hostname)
    };
    Ok(one("host", name, found, exact, shown)?.id)
}

/// A token may also be named by itself: whoever finds a leaked one has nothing else.
pub async fn token(store: &Store, name: &str) -> anyhow::Result<TokenId> {
    if let Ok(secret) = EnrolmentToken::parse(name) {
        let found = store.token_by_hash(&secret.hash().0).await?;
        return found.context("there is no such token here: is this the right database?");
    }
    let found = store.tokens_find(name, CANDIDATES).await?;
    let exact = |token: &TokenRecord| token.id.to_string() == lower(name);
    let shown = |token: &TokenRecord| format!("{} ({}, {})", token.id, token.label, token.state);
    Ok(one("token", name, found, exact, shown)?.id)
}

/// What was found a moment ago and is gone.
pub fn still_there<T>(found: Result<Option<T>, StoreError>, noun: &str) -> anyhow::Result<T> {
    found?.with_context(|| format!("the {noun} was deleted just now"))
}

/// An exact match goes before the names that only begin so.
fn one<T>(
    noun: &str,
    name: &str,
    found: Page<T>,
    exact: impl Fn(&T) -> bool,
    shown: impl Fn(&T) -> String,
) -> anyhow::Result<T> {
    let Page { mut rows, cut } = found;
    let position = rows.iter().position(exact);
    if let Some(position) = position.or((rows.len() == 1).then_some(0)) {
        return Ok(rows.swap_remove(position));
    }
    if rows.is_empty() {
        bail!("no {noun} is called {name:?}: `svc-ingest {noun} list` shows all");
    }
    let candidates: Vec<String> = rows.iter().map(shown).collect();
    let more = if cut { ", and more" } else { "" };
    bail!(
        "{name:?} fits several {noun}s, say which by its id: {}{more}",
        candidates.join(", ")
    )
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}
