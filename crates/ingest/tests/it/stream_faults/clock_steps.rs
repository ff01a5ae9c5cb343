//! A database whose clock is set, and instances whose own clock is wrong. Only the difference of the two counts, so
//! these tests set the database's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use svc_ingest::{
    config::Timing,
    signing::{self, Keyring},
};
use svc_testkit::{ActiveAgent, HeartbeatCall, Instance, Site, eventually};
use tokio::time::sleep;

/// Slower than an agent may open streams.
const RETRY: Duration = Duration::from_secs(1);

fn brisk(timing: &mut Timing) {
    timing.lease_renewal = Duration::from_millis(300);
    timing.poll = Duration::from_millis(300);
}

/// The database's clock is this much ahead when the instance starts.
async fn world(ahead: &str) -> Result<(Site, Instance, ActiveAgent)> {
    let site = Site::new().await?;
    site.settable_clock().await?;
    site.set_clock(ahead).await?;
    let instance = site.instance().timing(brisk).start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    Ok((site, instance, agent))
}

/// Opens a stream, though the instance may not have noticed yet that the clock was set.
async fn opened(agent: &ActiveAgent) -> Result<HeartbeatCall> {
    let mut opened = None;
    eventually("the stream is open", async || {
        opened = agent.heartbeat().await.ok();
        if opened.is_none() {
            sleep(RETRY).await;
        }
        opened.is_some()
    })
    .await?;
    opened.context("no stream")
}

/// Waits until the agent is refused for this reason.
async fn refused(agent: &ActiveAgent, reason: &str) -> Result<()> {
    eventually(reason, async || {
        let refused = agent.refused_heartbeat().await;
        let as_expected = refused.is_ok_and(|refused| refused.reason == reason);
        if !as_expected {
            sleep(RETRY).await;
        }
        as_expected
    })
    .await
}

/// How long a JWT is valid, by the database's clock.
async fn validity(site: &Site, jwt: &str) -> Result<i64> {
    let key = signing::read(&site.path("jwt_key.pem"))?.context("no key")?;
    let now = site.clock().await?;
    let at = jiff::Timestamp::from_second(now)?;
    Ok(Keyring::new(key, []).verify(jwt, at)?.claims.exp - now)
}

#[tokio::test]
async fn an_instance_whose_clock_is_a_year_off_issues_jwts_of_a_day() -> Result<()> {
    for off in ["-365 days", "365 days"] {
        let (site, _instance, agent) = world(off).await?;
        let validity = validity(&site, &agent.jwt).await.context(off)?;
        ensure!((86_300..=86_400).contains(&validity), "{off}: {validity} s");
        agent.heartbeat().await.context(off)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_jwt_expires_by_the_clock_of_the_database() -> Result<()> {
    let (site, instance, agent) = world("0").await?;
    site.set_clock("25 hours").await?;
    refused(&agent, "JWT_EXPIRED").await?;
    let jwt = agent.agent.jwt(instance.grpc, "").await?;
    opened(&ActiveAgent { jwt, ..agent }).await.map(drop)
}

/// It was issued before the clock was set back. It is ours, so its agent is not refused.
#[tokio::test]
async fn a_jwt_that_is_valid_for_too_long_is_accepted_and_replaced() -> Result<()> {
    let (site, _instance, agent) = world("1 hour").await?;
    site.set_clock("0").await?;
    let mut call = opened(&agent).await?;
    let renewed = call.next_credential().await?;
    let validity = validity(&site, &renewed).await?;
    ensure!(validity <= 86_400, "{validity} s");
    Ok(())
}
