//! A receiver that stays away over JetStream: what was pulled goes back at once.

use std::time::Duration;

use anyhow::Result;
use svc_testkit::{QueueKind, Site, metric_becomes};
use tokio::net::TcpListener;

/// A request is given up after 4 s. Tried one after the other, the requests of this test would take a minute.
const RETRIES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

#[tokio::test]
async fn after_a_request_that_is_given_up_the_rest_goes_back_at_once() -> Result<()> {
    let away = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let endpoint = format!("http://{away}");
    let instance = site.instance().set("INGEST_OTLP_ENDPOINT", endpoint);
    let instance = instance.config(|config| {
        let receiver = config.export.as_mut().expect("an endpoint");
        receiver.retries = RETRIES;
    });
    let (instance, agent) = instance.with_agent(&site).await?;
    let mut call = agent.heartbeat().await?;
    for report in 0..15 {
        call.report_acked(report * 500 + 1..=report * 500 + 500)
            .await?;
    }
    let postponed = r#"export_samples_total{outcome="postponed"}"#;
    metric_becomes(instance.http, postponed, |samples| samples >= 7500.0).await?;
    instance.stop().await
}
