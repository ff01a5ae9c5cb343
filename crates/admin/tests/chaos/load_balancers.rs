//! How long agents are away when an instance behind a load balancer stops.

use std::time::Duration;

use anyhow::Result;
use svc_testkit::{
    Pace, Site,
    faults::{LoadBalancer, instance_leaves_load_balancer},
};

async fn away_at_most(kind: LoadBalancer, limit: Duration) -> Result<()> {
    let site = Site::new().await?;
    let away = instance_leaves_load_balancer(&site, kind, 200, Pace::STEADY).await?;
    let longest = away.iter().max().copied().unwrap_or_default();
    println!(
        "{kind:?}: {} of 200 agents were away, the longest for {longest:?}",
        away.len()
    );
    assert!(longest < limit, "{longest:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "strict: run by make chaos"]
async fn agents_behind_haproxy_move_without_a_pause() -> Result<()> {
    away_at_most(LoadBalancer::HaProxy, Duration::from_secs(1)).await
}

#[tokio::test]
#[ignore = "strict: run by make chaos"]
async fn agents_behind_nginx_move_without_a_pause() -> Result<()> {
    away_at_most(LoadBalancer::Nginx, Duration::from_secs(1)).await
}
