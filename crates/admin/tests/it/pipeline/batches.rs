//! How the consumer gathers reports: few commits at a low rate, and no delay for an agent with a backlog.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_ingest::config::Timing;
use svc_testkit::{ActiveAgent, HeartbeatCall, Site, sample, transaction_count};

/// Without a wait for more reports there would be five commits a second and shard.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reports_of_many_agents_end_in_few_commits() -> Result<()> {
    const AGENTS: u32 = 60;
    let as_in_production = |timing: &mut Timing| timing.batch_wait = Timing::default().batch_wait;
    let wait = Timing::default().batch_wait.as_secs_f64();
    let site = Site::new().await?;
    let instance = site.instance().timing(as_in_production).start().await?;
    let mut calls = Vec::new();
    for number in 0..AGENTS {
        let agent = ActiveAgent::new(&site, instance.grpc, number).await?;
        calls.push(agent.heartbeat().await?);
    }
    report_all(&mut calls, 1, Duration::ZERO).await?;
    let commits = async || transaction_count(instance.http, "samples_append").await;
    let (before, began) = (commits().await?, Instant::now());
    report_all(&mut calls, 2, Duration::from_millis(50)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let commits = (commits().await? - before) as f64;
    let most = 2.0 * (seconds / wait + 1.0); // Two shards; each may begin with a batch at once.
    ensure!(commits <= most, "{commits} commits in {seconds:.1} s");
    site.expect("SELECT sum(stored_count) FROM agent_state", "120")
        .await
}

/// Each agent reports the sample `seq`, one after another.
async fn report_all(calls: &mut [HeartbeatCall], seq: u64, pause: Duration) -> Result<()> {
    for call in calls.iter() {
        call.report(vec![sample(seq)], vec![]).await?;
        tokio::time::sleep(pause).await;
    }
    for call in calls {
        call.acked_up_to(seq).await?;
    }
    Ok(())
}

/// The wait is an hour, so whoever waits for more reports is not acknowledged in time.
#[tokio::test]
async fn an_agent_with_a_backlog_does_not_wait_for_other_reports() -> Result<()> {
    let site = Site::new().await?;
    let patient = |timing: &mut Timing| timing.batch_wait = Duration::from_hours(1);
    let instance = site.instance().timing(patient).start().await?;
    let mut call = ActiveAgent::new(&site, instance.grpc, 1)
        .await?
        .heartbeat()
        .await?;
    call.report_acked(1..=1).await?; // A lone report waits for nothing.
    call.report_acked(2..=6).await?;
    for first in [7, 17, 27] {
        call.report_acked(first..=first + 9).await?;
    }
    two_in_flight(&mut call).await
}

/// An agent has two reports in flight at most, so it cannot go on before they are stored.
async fn two_in_flight(call: &mut HeartbeatCall) -> Result<()> {
    for seq in [37, 38] {
        call.report(vec![sample(seq)], vec![]).await?;
    }
    call.acked_up_to(38).await
}
