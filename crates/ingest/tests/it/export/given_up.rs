//! A receiver that stays away over JetStream: what was pulled goes back at once.

use std::time::Duration;

use anyhow::Result;
use svc_testkit::{ActiveAgent, QueueKind, Site, metric};
use tokio::net::TcpListener;

/// A request is given up after 20 s. Tried one after the other, the requests of this test would take five minutes.
const PATIENCE: Duration = Duration::from_secs(150);

#[tokio::test]
async fn after_a_request_that_is_given_up_the_rest_goes_back_at_once() -> Result<()> {
    let away = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let endpoint = format!("http://{away}");
    let instance = site.instance().set("INGEST_OTLP_ENDPOINT", endpoint);
    let instance = instance.start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    for report in 0..15 {
        call.report_acked(report * 500 + 1..=report * 500 + 500)
            .await?;
    }
    let postponed = r#"export_samples_total{outcome="postponed"}"#;
    svc_sandbox::eventually("all samples are put back", PATIENCE, async || {
        let samples = metric(instance.http, postponed).await;
        samples.is_ok_and(|samples| samples >= 7500.0)
    })
    .await?;
    instance.stop().await
}
