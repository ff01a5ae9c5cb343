//! Behind HAProxy and nginx, with the settings of deploy/.

use anyhow::Result;
use svc_sandbox::Identity;
use svc_testkit::{
    OneConnection, Pace, Site, Tls,
    faults::{LoadBalancer, instance_leaves_load_balancer},
    metric_becomes,
};

#[tokio::test]
async fn behind_haproxy_agents_keep_their_addresses_and_an_instance_leaves_unnoticed() -> Result<()>
{
    let site = Site::new().await?;
    let leaves = instance_leaves_load_balancer(&site, LoadBalancer::HaProxy, 12, Pace::BRISK);
    leaves.await.map(drop)
}

#[tokio::test]
async fn behind_nginx_agents_keep_their_addresses_and_an_instance_leaves_unnoticed() -> Result<()> {
    let site = Site::new().await?;
    let leaves = instance_leaves_load_balancer(&site, LoadBalancer::Nginx, 12, Pace::BRISK);
    leaves.await.map(drop)
}

#[tokio::test]
async fn a_listed_load_balancer_must_say_whose_connection_it_is() -> Result<()> {
    let site = Site::new().await?;
    let agent = Tls::with(&Identity::self_signed("agent")?);
    let listed = site
        .instance()
        .set("INGEST_PROXY_PROTOCOL_FROM", "127.0.0.0/8,::1");
    let listed = listed.start().await?;
    assert!(OneConnection::open(&agent, listed.grpc).await.is_err());
    let refused = r#"handshakes_total{result="no_proxy_header"}"#;
    metric_becomes(listed.http, refused, |count| count == 1.0).await?;
    let other = site
        .instance()
        .set("INGEST_PROXY_PROTOCOL_FROM", "10.0.0.0/8");
    let other = other.start().await?;
    let mut connection = OneConnection::open(&agent, other.grpc).await?;
    assert_eq!(connection.health_status().await?, "0");
    listed.stop().await?;
    other.stop().await
}
