//! Revocations of agents that have streams.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use svc_proto::ServerMessage;
use tokio::{task::JoinSet, time::sleep};

use crate::{AUTO, ActiveAgent, HeartbeatCall, Site, token};

/// Opens streams on two instances and revokes their agents one by one. Returns how long each stream
/// lived after its statement was sent.
pub async fn streams_revoked(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: u32,
) -> Result<Vec<Duration>> {
    let mut ends = JoinSet::new();
    for (id, mut call) in streams(site, addresses, 0..agents).await? {
        ends.spawn(async move {
            let reason = call.end().await?.map(|refused| refused.reason);
            ensure!(reason.as_deref() == Some("AGENT_REVOKED"), "{reason:?}");
            Ok((id, Instant::now()))
        });
    }
    let ids = "SELECT string_agg(id::text, ',') FROM agents WHERE status = 'active'";
    let mut asked = BTreeMap::new();
    for id in site.psql(ids).await?.split(',') {
        asked.insert(id.to_owned(), Instant::now());
        revoke(site, id).await?;
    }
    let ends = ends.join_all().await.into_iter();
    ends.map(|ended| ended.map(|(id, at)| at - asked[&id]))
        .collect()
}

/// Revokes agents at random moments while their JWTs are renewed all the time. Returns the number
/// of JWTs, and for each agent whose last JWT arrived after its revocation had committed, how long
/// after.
pub async fn renewals_raced(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: Range<u32>,
) -> Result<(usize, Vec<Duration>)> {
    let mut races = JoinSet::new();
    let mut revoked_at = BTreeMap::new();
    for (id, call) in streams(site, addresses, agents).await? {
        revoked_at.insert(id.clone(), Instant::now());
        races.spawn(async move { anyhow::Ok((id, credentials_until_revoked(call).await?)) });
    }
    sleep(Duration::from_millis(1500)).await;
    for (id, at) in &mut revoked_at {
        sleep(Duration::from_millis(rand::random_range(0..10))).await;
        revoke(site, id).await?;
        *at = Instant::now();
    }
    let (mut count, mut late) = (0, Vec::new());
    for raced in races.join_all().await {
        let (id, credentials) = raced?;
        count += credentials.len();
        let last = credentials.last();
        late.extend(last.and_then(|at| at.checked_duration_since(revoked_at[&id])));
    }
    Ok((count, late))
}

/// Registers agents and opens a stream each, on two instances in turn.
async fn streams(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: Range<u32>,
) -> Result<Vec<(String, HeartbeatCall)>> {
    let secret = token(site, AUTO.uses(100_000)).await?;
    let mut streams = Vec::new();
    for number in agents {
        let address = addresses[number as usize % 2];
        let agent = ActiveAgent::with_token(address, number, &secret).await?;
        let call = agent.heartbeat().await?;
        streams.push((agent.id, call));
    }
    Ok(streams)
}

async fn revoke(site: &Site, id: &str) -> Result<()> {
    let sql = format!("SELECT revoke_agent('{id}', 'chaos')");
    site.psql(&sql).await.map(drop)
}

/// When each JWT arrived.
async fn credentials_until_revoked(mut call: HeartbeatCall) -> Result<Vec<Instant>> {
    let mut credentials = Vec::new();
    loop {
        match call.receive().await? {
            Ok(Some(ServerMessage::Credential(_))) => credentials.push(Instant::now()),
            Ok(Some(_)) => {}
            Ok(None) => bail!("the stream ended without a reason"),
            Err(refused) => {
                ensure!(refused.reason == "AGENT_REVOKED", "{refused:?}");
                return Ok(credentials);
            }
        }
    }
}
