//! The connections to PostgreSQL: no more of them than the pool has, and none that the work which
//! keeps an instance alive must wait for.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{ActiveAgent, SAME_KEY, Site, absent_instance, faults, runs_again};

/// The smallest value that INGEST_DB_POOL_SIZE accepts.
const SMALLEST: &str = "4";

/// A lock that outlasts every deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_leaves_no_more_server_sessions_than_the_pool_has() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().set("INGEST_DB_POOL_SIZE", SMALLEST);
    let instance = instance.start().await?;
    let lock = "BEGIN; LOCK TABLE agents; SELECT pg_sleep(12); COMMIT";
    let most = faults::sessions_during(&site, instance.grpc, lock).await?;
    let pool = SMALLEST.parse()?;
    ensure!(most <= pool, "{most} server sessions, {pool} in the pool");
    Ok(())
}

/// A long reader keeps an expired partition from being detached; the pass waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn in_the_smallest_pool_maintenance_delays_neither_lease_nor_poll_nor_sweep() -> Result<()> {
    let site = Site::new().await?;
    let expired = "CREATE TABLE sample_chunks_20200101 PARTITION OF sample_chunks
        FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')";
    site.psql(expired).await?;
    let reader = site.hold("SELECT FROM host_metrics").await?;
    let instance = site.instance().set("INGEST_DB_POOL_SIZE", SMALLEST);
    let instance = instance.timing(|timing| {
        timing.lease_renewal = Duration::from_millis(500);
        timing.lease_ttl = Duration::from_secs(3);
        timing.poll = Duration::from_secs(1);
    });
    let instance = instance.start().await?;
    let detaching = "SELECT count(*) FROM pg_stat_activity
                      WHERE query LIKE '%DETACH PARTITION%' AND wait_event_type = 'Lock'";
    site.becomes(detaching, "1").await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    for name in ["lease_renew", "sessions_digest"] {
        runs_again(instance.http, name, 3).await?;
    }
    let lapsed = absent_instance(SAME_KEY, "-5 minutes");
    site.psql(&lapsed).await?;
    let swept = "SELECT count(*) FROM ingest_instances WHERE fenced";
    site.becomes(swept, "1").await?;
    let live = "SELECT count(*) FROM ingest_instances WHERE expires_at > now() AND NOT fenced";
    site.expect(live, "1").await?;
    let revoke = format!("SELECT revoke_agent('{}', 'test', 'a test')", agent.id);
    site.psql(&revoke).await?;
    let refused = call.end().await?;
    ensure!(refused.is_some_and(|refused| refused.reason == "AGENT_REVOKED"));
    site.expect(detaching, "1").await?;
    reader.release().await
}
