//! The gauges of the whole fleet: who reads them, and what they count.

use anyhow::{Context, Result};
use svc_store::{FleetGauges, NewInstance};

use crate::{
    fixtures::*,
    leases::{claimed, instance},
    support::*,
};

async fn read(store: &TestStore, instance: &NewInstance) -> Result<FleetGauges> {
    let gauges = store.fleet_gauges(instance.id, DAY).await?;
    gauges.context("it does not report")
}

#[tokio::test]
async fn only_the_live_instance_with_the_oldest_lease_reports() -> Result<()> {
    let store = migrated().await?;
    let (first, second) = (claimed(&store, "a").await?, claimed(&store, "a").await?);
    for (reporter, silent, instances) in [(&first, &second, 2), (&second, &first, 1)] {
        assert_eq!(read(&store, reporter).await?.state.instances, instances);
        for silent in [silent, &instance("stranger")] {
            assert_eq!(store.fleet_gauges(silent.id, DAY).await?, None);
        }
        store.lease_release(first.id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agents_are_counted_by_status_and_presence_with_the_oldest_pending_one() -> Result<()> {
    let store = migrated().await?;
    let reporter = claimed(&store, "a").await?;
    let state = read(&store, &reporter).await?.state;
    assert_eq!((state.pending_seconds, state.hosts_with_gaps), (0.0, 0));
    let [online, lossy, pending] = TestAgent::many(&store, 3).await?[..] else {
        anyhow::bail!("three agents");
    };
    let sql = format!(
        "UPDATE agent_state SET presence = 'online', cause = 'connected', last_gap_at = now() - interval '2 days' WHERE agent_id = '{}';
         UPDATE agent_state SET last_gap_at = now() WHERE agent_id = '{}';
         INSERT INTO agents (host_id, key, status, pending_reason, created_at)
         VALUES ('{}', sha256('pending'), 'pending', 'approval', now() - interval '2 hours')",
        online.id, lossy.id, pending.host
    );
    store.sql(&sql).await?;
    let FleetGauges { agents, state } = read(&store, &reporter).await?;
    for (status, presence, count) in [
        ("active", "online", 1),
        ("active", "offline", 2),
        ("pending", "offline", 1),
    ] {
        let mut groups = agents.iter();
        let group = groups.find(|group| group.status == status && group.presence == presence);
        let found = group.map(|group| group.count);
        assert_eq!(found, Some(count), "{status} {presence}");
    }
    let pending = 7200.0..8000.0;
    assert!(pending.contains(&state.pending_seconds), "{state:?}");
    assert_eq!(state.hosts_with_gaps, 1);
    Ok(())
}

#[tokio::test]
async fn days_that_should_be_dropped_are_counted() -> Result<()> {
    let store = migrated().await?;
    let reporter = claimed(&store, "a").await?;
    store.partitions_create(DAY * 5).await?;
    let state = read(&store, &reporter).await?.state;
    // Days of the longer retention that a shorter one no longer keeps.
    assert!((3..=4).contains(&state.days_undropped), "{state:?}");
    assert_eq!(state.backends_orphaned, 0);
    let kept = store.fleet_gauges(reporter.id, DAY * 5).await?;
    assert_eq!(kept.context("a reporter")?.state.days_undropped, 0);
    Ok(())
}

/// With statistics of many partitions PostgreSQL reads the names of all tables at once, not only those of partitions.
#[tokio::test]
async fn days_are_read_from_the_names_of_partitions_alone() -> Result<()> {
    let store = migrated().await?;
    let reporter = claimed(&store, "a").await?;
    store.partitions_create(DAY * 60).await?;
    store.sql("ANALYZE pg_inherits, pg_class").await?;
    let plan = "EXPLAIN SELECT FROM sample_days WHERE day < now()";
    let plan = store.sql(plan).await?;
    assert!(plan.contains("Seq Scan on pg_class"), "{plan}");
    let state = read(&store, &reporter).await?.state;
    assert!(state.days_undropped >= 58, "{state:?}");
    assert!(store.overview().await?.history.days >= 60);
    store.partitions_create(DAY * 60).await?;
    Ok(())
}
