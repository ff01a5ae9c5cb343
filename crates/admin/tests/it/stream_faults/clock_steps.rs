//! A database whose clock is set, and instances whose own clock is wrong. Only the difference of the two counts, so
//! these tests set the database's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use svc_ingest::{
    config::Timing,
    signing::{self, Keyring},
};
use svc_testkit::{
    ActiveAgent, FakeAgent, Instance, REINSTALL, Site, eventually, is_active, machine, sample,
    token,
};
use tokio::time::sleep;

/// Slower than an agent may open streams.
const RETRY: Duration = Duration::from_secs(1);

fn brisk(timing: &mut Timing) {
    timing.lease_renewal = Duration::from_millis(300);
    timing.poll = Duration::from_millis(300);
    timing.reinstall_quiet = Duration::from_secs(2);
}

/// The database's clock is this much ahead when the instance starts.
async fn world(ahead: &str) -> Result<(Site, Instance, ActiveAgent)> {
    let site = Site::new().await?;
    site.settable_clock().await?;
    site.set_clock(ahead).await?;
    let (instance, agent) = site.instance().timing(brisk).with_agent(&site).await?;
    Ok((site, instance, agent))
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
async fn a_database_clock_that_is_set_back_or_forward_locks_no_agent_out() -> Result<()> {
    for step in ["-1 hour", "1 hour"] {
        let (site, _instance, agent) = world("0").await?;
        drop(agent.heartbeat().await?);
        site.set_clock(step).await?;
        let noticed =
            "SELECT bool_and(now() - renewed_at BETWEEN '0' AND '1 minute') FROM ingest_instances";
        site.becomes(noticed, "t").await?;
        sleep(RETRY).await;
        drop(agent.heartbeat_in_time(agent.address).await.context(step)?);
    }
    Ok(())
}

/// Its old stream was opened in the future, which does not prove that it was heard just now.
#[tokio::test]
async fn a_machine_that_fails_over_after_a_step_back_is_no_clone() -> Result<()> {
    let (site, _instance, agent) = world("0").await?;
    let silent = agent.heartbeat().await?;
    site.set_clock("-1 hour").await?;
    let other = agent.copied_to(machine(2));
    refused(&other, "IDENTITY_PRESUMED_IN_USE").await?;
    drop(silent);
    let offline = "SELECT presence FROM agent_state";
    site.becomes(offline, "offline").await?;
    other.heartbeat_in_time(other.address).await.map(drop)
}

/// The contest began in the future, so that no answer would be newer.
#[tokio::test]
async fn a_clone_is_recognised_though_the_clock_was_set_back_meanwhile() -> Result<()> {
    let (site, _instance, agent) = world("0").await?;
    let original = agent.heartbeat().await?;
    let aged = "UPDATE agent_state SET connected_at = now() - interval '3 hours'";
    site.psql(aged).await?;
    let clone = agent.copied_to(machine(2));
    refused(&clone, "IDENTITY_PRESUMED_IN_USE").await?;
    site.set_clock("-1 hour").await?;
    let mut seq = 0;
    eventually("the clone is recognised", async || {
        seq += 1;
        let reported = original.report(vec![sample(seq)], vec![]).await;
        sleep(RETRY).await;
        let refused = clone.refused_heartbeat().await;
        reported.is_ok() && refused.is_ok_and(|refused| refused.reason == "IDENTITY_IN_USE")
    })
    .await
}

#[tokio::test]
async fn a_reinstalled_machine_waits_for_its_quiet_time_and_not_for_the_clock() -> Result<()> {
    let (site, instance, agent) = world("0").await?;
    drop(agent.heartbeat().await?);
    site.becomes("SELECT presence, cause FROM agent_state", "offline|lost")
        .await?;
    site.set_clock("-1 hour").await?;
    let newcomer = FakeAgent::on(machine(1))?;
    let secret = token(&site, REINSTALL).await?;
    let mut stream = newcomer.pending(instance.grpc, &secret).await?;
    ensure!(is_active(&stream.answer().await?), "after the quiet time");
    Ok(())
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
    let agent = ActiveAgent { jwt, ..agent };
    agent.heartbeat_in_time(instance.grpc).await.map(drop)
}

/// It was issued before the clock was set back. It is ours, so its agent is not refused.
#[tokio::test]
async fn a_jwt_that_is_valid_for_too_long_is_accepted_and_replaced() -> Result<()> {
    let (site, _instance, agent) = world("1 hour").await?;
    site.set_clock("0").await?;
    let mut call = agent.heartbeat_in_time(agent.address).await?;
    let renewed = call.next_credential().await?;
    let validity = validity(&site, &renewed).await?;
    ensure!(validity <= 86_400, "{validity} s");
    Ok(())
}
