//! The heartbeat stream: the rules of the protocol, and what they leave in the database.

mod held;
mod identity;
mod opening;
mod sessions;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use svc_proto::{
    ClientMessage,
    v1::{Gap, Report, Sample, Vitals},
};
use svc_testkit::{
    ActiveAgent, HeartbeatCall, Instance, InstanceBuilder, RefusedCall, Site, request, sample,
};
use tonic::Code;

const PRESENCE: &str = "SELECT presence, cause FROM agent_state";
const EPOCH: &str = "SELECT presence, epoch FROM agent_state";
const PRESENCE_CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'presence'";
/// In this order: acknowledged, stored, rejected, gaps.
const BOOKS: &str = "SELECT acked_seq, stored_count, rejected_count, gap_count FROM agent_state";

/// One instance and one active agent.
struct World {
    site: Site,
    instance: Instance,
    agent: ActiveAgent,
}

impl World {
    async fn new() -> Result<Self> {
        Self::tuned(|builder| builder).await
    }

    async fn tuned(tune: impl FnOnce(InstanceBuilder) -> InstanceBuilder) -> Result<Self> {
        let site = Site::new().await?;
        let (instance, agent) = tune(site.instance()).with_agent(&site).await?;
        Ok(Self {
            site,
            instance,
            agent,
        })
    }
}

/// The refusal that ends a stream.
async fn refusal(call: &mut HeartbeatCall) -> Result<RefusedCall> {
    call.end().await?.context("the stream ended with OK")
}

#[tokio::test]
async fn a_stream_is_welcomed_and_its_samples_are_acknowledged_once_they_are_stored() -> Result<()>
{
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder
            .set("INGEST_HEARTBEAT_INTERVAL", "45s")
            .set("INGEST_AGENT_LATEST_VERSION", "2.1.0")
    })
    .await?;
    let mut call = agent.heartbeat().await?;
    let settings = call.welcome.settings.clone().context("no settings")?;
    let interval = settings.heartbeat_interval.context("no interval")?;
    assert_eq!(interval.seconds, 45);
    let release = settings.release.context("no release")?;
    assert_eq!(release.version, "2.1.0");
    assert_eq!(release.download_base_url, "http://localhost:3000");
    assert_eq!(call.welcome.acked_seq, 0);
    assert!(call.welcome.server_time.is_some());
    site.expect(PRESENCE, "online|connected").await?;

    call.report(vec![sample(1), sample(2)], vec![]).await?;
    assert_eq!(call.next_ack().await?.up_to_seq, 2);
    let stored = "SELECT count(*), max(seq) FROM host_metrics";
    site.expect(stored, "2|2").await?;
    site.expect(BOOKS, "2|2|0|0").await?;
    let vitals = "SELECT cpu_percent, memory_used_bytes, vitals_at IS NOT NULL FROM host_overview";
    site.expect(vitals, "12.5|2|t").await?;
    let overview = "SELECT online, agent_version, last_seen_at IS NOT NULL FROM host_overview";
    site.expect(overview, "t|1.0.0|t").await?;

    call.goodbye().await?;
    site.becomes(PRESENCE, "offline|goodbye").await?;
    let again = agent.heartbeat().await?;
    assert_eq!(again.welcome.acked_seq, 2, "the watermark");
    let events =
        "SELECT string_agg(concat(from_status, '>', to_status, ' ', reason), ', ' ORDER BY id)
           FROM agent_events WHERE kind = 'presence'";
    let expected = "offline>online connected, online>offline goodbye, offline>online connected";
    site.expect(events, expected).await
}

#[tokio::test]
async fn a_sample_sent_twice_is_stored_once_and_acknowledged_again() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    for _ in 0..3 {
        call.report((1..=3).map(sample).collect(), vec![]).await?;
        assert_eq!(call.next_ack().await?.up_to_seq, 3);
    }
    drop(call);
    agent.heartbeat().await?.report_acked(2..=4).await?;
    let stored = "SELECT count(*), count(DISTINCT seq) FROM host_metrics";
    site.expect(stored, "4|4").await?;
    site.expect(BOOKS, "4|4|0|0").await
}

#[tokio::test]
async fn skipped_declared_and_rejected_numbers_are_in_the_books() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    let mut bad = sample(4);
    bad.vitals = Some(Vitals {
        cpu_percent: f64::NAN,
        ..Vitals::default()
    });
    let lost = Gap {
        first_seq: 6,
        last_seq: 9,
        reason: "spool full".into(),
    };
    let samples = vec![sample(1), bad, sample(5), sample(10)];
    call.report(samples, vec![lost]).await?;
    let ack = call.next_ack().await?;
    assert_eq!(ack.up_to_seq, 10);
    let [rejection] = &ack.rejected[..] else {
        bail!("not one rejection: {ack:?}");
    };
    let reason = "cpu_percent is not between 0 and 100";
    assert_eq!((rejection.seq, rejection.reason.as_str()), (4, reason));
    site.expect(BOOKS, "10|3|1|6").await?;
    let gaps = "SELECT string_agg(concat(first_seq, '-', last_seq, ' ', kind), ', ' ORDER BY first_seq) FROM metric_gaps";
    let expected = "2-3 not sent, 4-4 rejected, 6-9 declared";
    site.expect(gaps, expected).await
}

#[tokio::test]
async fn many_rejections_are_named_in_several_acknowledgements_each_once() -> Result<()> {
    const SAMPLES: u64 = 250;
    let World { site, agent, .. } = &World::new().await?;
    let mut call = agent.heartbeat().await?;
    let bad = |seq| Sample {
        vitals: None,
        ..sample(seq)
    };
    let samples = (1..=SAMPLES).map(bad).collect();
    call.report(samples, vec![]).await?;
    let (mut named, mut up_to) = (Vec::new(), 0);
    while up_to < SAMPLES {
        let ack = call.next_ack().await?;
        named.extend(ack.rejected.iter().map(|rejection| rejection.seq));
        assert!(ack.up_to_seq > up_to && ack.rejected.len() <= 100);
        up_to = ack.up_to_seq;
        assert_eq!(named, (1..=up_to).collect::<Vec<_>>(), "all up to it");
    }
    let gaps = "SELECT concat(first_seq, '-', last_seq, ' ', kind) FROM metric_gaps";
    site.expect(gaps, "1-250 rejected").await
}

#[tokio::test]
async fn a_violation_of_the_protocol_ends_the_stream_with_its_reason() -> Result<()> {
    let World { site, agent, .. } = &World::tuned(|builder| {
        builder.timing(|timing| timing.hello_deadline = Duration::from_secs(2))
    })
    .await?;
    let open = || agent.agent.open_stream(agent.address, &agent.jwt);
    let (out, mut responses) = open().await??;
    let report = request(ClientMessage::Report(Report::default()));
    out.send(report).await?;
    let status = responses.message().await.expect_err("Hello comes first");
    RefusedCall::of(&status).assert(Code::InvalidArgument, "PROTOCOL_VIOLATION");

    let (_silent, mut responses) = open().await??;
    let status = responses.message().await.expect_err("no Hello");
    RefusedCall::of(&status).assert(Code::DeadlineExceeded, "HELLO_TIMEOUT");

    let mut nameless = agent.agent.hello();
    nameless.run_id.clear();
    let refused = agent.refused_hello(nameless).await?;
    refused.assert(Code::InvalidArgument, "MALFORMED_REQUEST");

    let report = |samples| {
        let gaps = vec![];
        ClientMessage::Report(Report {
            samples,
            gaps,
            update: None,
            ..Report::default()
        })
    };
    for violation in [
        ClientMessage::Hello(agent.agent.hello()),
        report(vec![sample(0)]),
        report(vec![sample(1); 501]),
    ] {
        let mut call = agent.heartbeat().await?;
        call.send(violation).await?;
        let refused = refusal(&mut call).await?;
        refused.assert(Code::InvalidArgument, "PROTOCOL_VIOLATION");
    }
    site.becomes(PRESENCE, "offline|lost").await
}
