//! Hosts that have been offline for long are retired, where a setting asks for it.

use std::time::Duration;

use anyhow::Result;
use svc_testkit::{ActiveAgent, Site};

#[tokio::test]
async fn hosts_that_are_offline_for_long_are_retired_if_a_setting_asks_for_it() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_EXPIRE_HOSTS_OFFLINE_FOR", "30d")
        .timing(|timing| timing.host_expiry = Duration::from_millis(200));
    let instance = instance.start().await?;
    let gone = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let away = ActiveAgent::new(&site, instance.grpc, 2).await?;
    for (agent, days) in [(&gone, 31), (&away, 29)] {
        site.psql(&format!(
            "UPDATE agent_state SET presence = 'offline', presence_since = now() - interval '{days} days'
              WHERE agent_id = '{}'",
            agent.id
        ))
        .await?;
    }
    let retired = "SELECT string_agg(hostname, ',') FROM hosts WHERE retired_at IS NOT NULL";
    site.becomes(retired, "web-1").await?;
    let decision = format!(
        "SELECT to_status || ' by ' || actor FROM agent_events WHERE agent_id = '{}' AND to_status = 'revoked'",
        gone.id
    );
    site.expect(&decision, "revoked by svc-ingest").await?;
    let status = format!("SELECT status FROM agents WHERE id = '{}'", away.id);
    site.expect(&status, "active").await
}

#[tokio::test]
async fn an_instance_records_how_full_it_is() -> Result<()> {
    let (site, _instance, agent) = Site::with_agent().await?;
    let _stream = agent.heartbeat().await?;
    site.becomes("SELECT load ->> 'agents' FROM ingest_instances", "1")
        .await?;
    let plausible = "
        SELECT (load ->> 'cores')::float > 0 AND (load ->> 'memory_bytes')::bigint > 1000000
           AND (load ->> 'max_connections')::bigint > 1 AND (load ->> 'max_queue_bytes')::bigint > 0
           AND (load ->> 'certificate_expires_at')::timestamptz > now() FROM ingest_instances";
    site.expect(plausible, "t").await
}
