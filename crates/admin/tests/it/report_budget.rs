//! The report budget: reports that have no room are not read, and heartbeats do not wait behind backlogs.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use svc_ingest::config::Config;
use svc_pipeline::budget::BudgetBounds;
use svc_proto::ClientMessage;
use svc_testkit::{
    ActiveAgent, QueueKind, Site, faults::UnreadStream, framed, large_report, metric_becomes,
    request,
};
use tokio::task::JoinSet;

const AGENTS: u32 = 10;
const KIB: usize = 1024;
/// More than the HTTP/2 window of a stream, and one frame.
const UNREAD: usize = 48 * KIB;
const WAITING: &str = "reports_waiting";

/// Room for one large report at each step.
const SCARCE: BudgetBounds = BudgetBounds {
    reading: 256 * 1024,
    large: 4 << 20,
    small: 4 << 20,
    register: 1 << 20,
    hello: 1 << 20,
    opening_wait: Duration::from_secs(5),
};

fn scarce(config: &mut Config) {
    config.grpc.report_budget = SCARCE;
}

fn report() -> Bytes {
    framed(&request(ClientMessage::Report(large_report(1..=500))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_without_room_is_not_read_until_there_is_room() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Memory).await?;
    let one_report = |config: &mut Config| {
        config.queue.bounds.samples = 500;
        scarce(config);
    };
    let instance = site.instance().config(one_report).start().await?;
    let mut streams = Vec::new();
    for number in 0..AGENTS {
        let agent = ActiveAgent::new(&site, instance.grpc, number).await?;
        streams.push(UnreadStream::welcomed(&agent).await?);
    }
    let lock = site.hold("LOCK TABLE samples_open IN SHARE MODE").await?;
    let mut sending = JoinSet::new();
    for mut stream in streams {
        sending.spawn(async move {
            let mut rest = report();
            let taken = stream.send_taken(&mut rest, Duration::from_secs(2)).await?;
            Ok::<_, anyhow::Error>((stream, rest, taken))
        });
    }
    let (mut streams, mut taken) = (Vec::new(), 0);
    for sent in sending.join_all().await {
        let (stream, rest, bytes) = sent?;
        streams.push((stream, rest));
        taken += bytes;
    }
    lock.release().await?;
    // One in the queue, one decoded, one read, one that is being read, and the windows of the others.
    let most = 4 * report().len() + AGENTS as usize * UNREAD;
    ensure!(
        taken <= most,
        "{taken} bytes were read of {AGENTS} agents, at most {most}"
    );
    let mut sending = JoinSet::new();
    for (mut stream, mut rest) in streams {
        sending.spawn(async move {
            stream
                .send_taken(&mut rest, Duration::from_secs(60))
                .await?;
            Ok::<_, anyhow::Error>(stream)
        });
    }
    let _streams = sending.join_all().await;
    let acked = "SELECT count(*) FROM agent_state WHERE acked_seq = 500";
    site.becomes(acked, &AGENTS.to_string()).await?;
    metric_becomes(instance.http, WAITING, |waiting| waiting == 0.0).await
}

/// A client announces a large report and does not send it: it takes all the room for reading.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_are_acknowledged_while_large_reports_wait() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().config(scarce).start().await?;
    let mut agents = Vec::new();
    for number in 0..3 {
        agents.push(ActiveAgent::new(&site, instance.grpc, number).await?);
    }
    let mut slow = UnreadStream::welcomed(&agents[0]).await?;
    let mut beginning = report().slice(..100);
    slow.send_taken(&mut beginning, Duration::from_secs(1))
        .await?;

    let mut large = agents[1].heartbeat().await?;
    let backlog = ClientMessage::Report(large_report(1..=500));
    large.send(backlog).await?;
    metric_becomes(instance.http, WAITING, |waiting| waiting == 1.0).await?;
    agents[2].heartbeat().await?.report_acked(1..=3).await?;

    slow.connection.abort();
    large.acked_up_to(500).await?;
    metric_becomes(instance.http, WAITING, |waiting| waiting == 0.0).await
}

/// A stream that waits for room serves its mail, and its silence does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_for_room_is_not_silent_and_hears_of_its_revocation() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_HEARTBEAT_INTERVAL", "1s")
        .config(scarce);
    let instance = instance.start().await?;
    let slow = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let mut slow = UnreadStream::welcomed(&slow).await?;
    let mut beginning = report().slice(..100);
    slow.send_taken(&mut beginning, Duration::from_secs(1))
        .await?;
    let mut call = agent.heartbeat().await?;
    call.send(ClientMessage::Report(large_report(1..=500)))
        .await?;
    metric_becomes(instance.http, WAITING, |waiting| waiting == 1.0).await?;
    // The slow client is ended as silent after 12 s, and its room goes to the other.
    call.acked_up_to(500).await?;
    let revoke = format!("SELECT revoke_agent('{}', 'ann')", agent.id);
    site.psql(&revoke).await?;
    let end = call.end().await?;
    ensure!(end.is_some_and(|end| end.reason == "AGENT_REVOKED"));
    Ok(())
}
