//! The memory of an instance: the figures of docs/sizing.md.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use svc_proto::ClientMessage;
use svc_testkit::{
    AUTO, ActiveAgent, Fleet, Pace, Site, Usage, documented_memory, faults::UnreadStream, framed,
    large_report, metric, raise_file_limit, request, token,
};
use tokio::{task::JoinSet, time::sleep};

const AGENTS: u32 = 1_000;
const RESIDENT: &str = "process_resident_memory_bytes";

/// Far more than was measured: the limit catches a leak, or one more buffer per connection.
const MOST_KIB: f64 = 256.0;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: run by make chaos and make sizing"]
async fn a_thousand_agents_take_little_memory() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.server_process().start().await?;
    let empty = metric(instance.http, RESIDENT).await?;
    let _fleet = Fleet::reporting(&site, &[instance.grpc], AGENTS, Pace::STEADY).await?;
    let full = metric(instance.http, RESIDENT).await?;
    let each = (full - empty) / f64::from(AGENTS) / 1024.0;
    println!(
        "{AGENTS} agents: {each:.0} KiB each, over {:.0} MiB of an instance without any",
        empty / 1024.0 / 1024.0
    );
    ensure!(each < MOST_KIB, "{each:.0} KiB an agent");
    Ok(())
}

const BACKLOGS: u32 = 2_000;
const SAMPLES: u64 = 500;
/// Less than the time after which an instance without the database sends its agents away.
const OUTAGE: Duration = Duration::from_secs(45);
const RECOVERY: Duration = Duration::from_mins(10);

/// PostgreSQL is stopped, and 2,000 agents send a report of 500 samples each.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos and make sizing"]
async fn backlogs_of_two_thousand_agents_stay_within_the_documented_memory() -> Result<()> {
    raise_file_limit();
    let mut site = Site::with_own_server().await?;
    let instance = site.process().set("INGEST_LOG", "warn").start().await?;
    let secret = token(&site, AUTO.uses(BACKLOGS.try_into()?)).await?;
    let agents: Vec<UnreadStream> = stream::iter(0..BACKLOGS)
        .map(async |number| {
            let agent = ActiveAgent::with_token(instance.grpc, number, &secret).await?;
            UnreadStream::welcomed(&agent).await
        })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    let resident = || Usage::of(instance.pid()).map(|usage| usage.resident);
    let connected = resident()?;
    site.postgres().stop_immediate().await?;
    let report = framed(&request(ClientMessage::Report(large_report(1..=SAMPLES))));
    println!(
        "a report of {SAMPLES} samples has {} KiB",
        report.len() >> 10
    );
    let began = Instant::now();
    let mut sending = JoinSet::new();
    for agent in agents {
        sending.spawn(sent(agent, report.clone()));
    }
    sleep(OUTAGE).await;
    let stalled = resident()?;
    site.postgres().start_again().await?;
    let back = Instant::now();
    let acked = format!("SELECT count(*) FROM agent_state WHERE acked_seq = {SAMPLES}");
    while site.psql(&acked).await? != BACKLOGS.to_string() {
        ensure!(
            back.elapsed() < RECOVERY,
            "{} acknowledged",
            site.psql(&acked).await?
        );
        sleep(Duration::from_millis(500)).await;
    }
    let recovered = back.elapsed();
    let peak = Usage::of(instance.pid())?.peak;
    let most = documented_memory(BACKLOGS.into());
    println!(
        "{BACKLOGS} agents: {} MiB connected, {} MiB after an outage of {:.0?}, {} MiB at most; documented: {} MiB; all \
         acknowledged after {recovered:.1?}",
        connected >> 20,
        stalled >> 20,
        back.duration_since(began),
        peak >> 20,
        most >> 20
    );
    ensure!(peak <= most, "more than documented");
    for sent in sending.join_all().await {
        drop(sent?);
    }
    Ok(())
}

async fn sent(mut agent: UnreadStream, mut report: Bytes) -> Result<UnreadStream> {
    agent.send_taken(&mut report, RECOVERY).await?;
    Ok(agent)
}
