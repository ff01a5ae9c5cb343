//! The gRPC port over mutual TLS: health, reflection, and how it refuses.

use anyhow::Result;
use svc_sandbox::Identity;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::harness::{Site, channel};

#[tokio::test]
async fn health_is_served_over_mutual_tls() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let channel = channel(instance.grpc, &Identity::self_signed("agent")?).await?;
    let answer = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await?;
    assert_eq!(answer.get_ref().status(), ServingStatus::Serving);
    instance.stop().await
}

#[tokio::test]
async fn process_smoke() -> Result<()> {
    let site = Site::new().await?;
    let mut process = site.process().start().await?;
    process.stop().await
}
