//! The pictures of the fleet: what is counted, when, and by whom.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use svc_store::{FleetPictures, PresencePoint, VersionCount};

use crate::{fixtures::*, support::*};

const MINUTE_LONG: Duration = Duration::from_mins(1);
/// Every count is due.
const NOW: Duration = Duration::ZERO;

/// Numbers the hosts from 0 and gives them vitals; all are online except the last two. Number 3 has none.
const VITALS: &str = "
    CREATE TEMP TABLE numbered AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM hosts;
    UPDATE hosts h SET hostname = 'web-' || n FROM numbered WHERE numbered.id = h.id;
    UPDATE host_vitals v SET vitals_at = now(), cpu_percent = n * 8, memory_used_bytes = n, memory_total_bytes = 20, fullest_disk_percent = 100 - n
      FROM numbered WHERE numbered.id = v.host_id AND n <> 3;
    UPDATE agents a SET version = CASE WHEN n < 12 THEN 'v' || n ELSE 'v0' END FROM numbered WHERE numbered.id = a.host_id;
    UPDATE agent_state s SET presence = 'online', cause = 'connected'
      FROM agents a JOIN numbered ON numbered.id = a.host_id WHERE a.id = s.agent_id AND n < (SELECT max(n) - 1 FROM numbered)";

async fn pictures(store: &TestStore) -> Result<FleetPictures> {
    let found = store.console_pictures().await?;
    Ok(found.context("nothing was counted")?.1)
}

async fn points(store: &TestStore) -> Result<Vec<PresencePoint>> {
    let since = Timestamp::now() - SignedDuration::from_hours(24);
    Ok(store.console_fleet_presence(since).await?)
}

#[tokio::test]
async fn pictures_have_the_figures_of_hosts_that_are_online() -> Result<()> {
    let store = migrated().await?;
    TestAgent::many(&store, 14).await?;
    store.sql(VITALS).await?;
    // An agent that waits for a decision is in no picture.
    let others = "
        INSERT INTO hosts (hostname) VALUES ('new');
        INSERT INTO agents (host_id, key, status, pending_reason) SELECT id, sha256('new'), 'pending', 'approval' FROM hosts WHERE hostname = 'new'";
    store.sql(others).await?;
    ensure!(store.fleet_pictures_refresh(NOW).await?);
    let found = pictures(&store).await?;
    assert_eq!((found.online, found.offline), (12, 2));
    // 0, 8, 16, 32, …, 88 percent: 24 is missing.
    let mut cpu = vec![0; 20];
    for n in (0..12).filter(|n| *n != 3) {
        cpu[n * 8 / 5] += 1;
    }
    assert_eq!(found.cpu.bins, cpu);
    let mut memory = vec![0; 20];
    for n in (0..12).filter(|n| *n != 3) {
        memory[n] += 1;
    }
    assert_eq!(found.memory.bins, memory);
    // 100 percent is in the last bin, with 95 to 99.
    assert_eq!((found.disk.bins[19], found.disk.bins[18]), (5, 5));
    assert_eq!((found.disk.hosts(), found.disk.bins[17]), (11, 1));
    let names = found.cpu.worst.iter().map(|host| host.hostname.as_str());
    let expected = ["11", "10", "9", "8", "7", "6", "5", "4", "2", "1"];
    assert_eq!(
        names.collect::<Vec<_>>(),
        expected.map(|n| format!("web-{n}"))
    );
    assert_eq!(found.cpu.worst[0].percent, 88.0);
    assert_eq!(found.disk.worst[0].hostname, "web-0");
    assert_eq!(found.memory.worst[0].percent, 55.0);
    // Twelve versions, of which ten are kept: that of three agents comes first.
    let first = VersionCount {
        version: "v0".into(),
        agents: 3,
    };
    assert_eq!((found.versions.len(), &found.versions[0]), (10, &first));
    let [point] = points(&store).await?[..] else {
        anyhow::bail!("one point");
    };
    assert_eq!((point.online, point.offline), (12, 2));
    Ok(())
}

#[tokio::test]
async fn one_of_many_instances_counts_in_a_period() -> Result<()> {
    let store = migrated().await?;
    let (one, two) = (
        TestStore::open(store.url(), 3)?,
        TestStore::open(store.url(), 3)?,
    );
    let (one, two) = tokio::join!(
        one.fleet_pictures_refresh(MINUTE_LONG),
        two.fleet_pictures_refresh(MINUTE_LONG)
    );
    assert!(one? ^ two?, "one of them");
    assert!(!store.fleet_pictures_refresh(MINUTE_LONG).await?, "not due");
    let older = "UPDATE fleet_pictures SET at = now() - interval '61 seconds'";
    store.sql(older).await?;
    assert!(store.fleet_pictures_refresh(MINUTE_LONG).await?, "due");
    // The clock was set back.
    let ahead = "UPDATE fleet_pictures SET at = now() + interval '1 hour'";
    store.sql(ahead).await?;
    assert!(store.fleet_pictures_refresh(MINUTE_LONG).await?, "due");
    Ok(())
}

#[tokio::test]
async fn while_another_instance_counts_nothing_is_done() -> Result<()> {
    let store = migrated().await?;
    let other = store.connect().await?;
    // The key is that of statements/locks.rs.
    let lock = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({})",
        0x7376_6369_0007_i64
    );
    other.batch_execute(&lock).await?;
    assert!(!store.fleet_pictures_refresh(NOW).await?);
    assert_eq!(store.console_pictures().await?, None);
    other.batch_execute("COMMIT").await?;
    assert!(store.fleet_pictures_refresh(NOW).await?);
    Ok(())
}

/// A new installation counts before its first host is there.
#[tokio::test]
async fn the_first_host_is_counted_without_waiting_for_the_period() -> Result<()> {
    let store = migrated().await?;
    assert!(store.fleet_pictures_refresh(MINUTE_LONG).await?);
    assert!(!store.fleet_pictures_refresh(MINUTE_LONG).await?);
    TestAgent::new(&store).await?;
    assert!(!store.fleet_pictures_refresh(MINUTE_LONG).await?, "offline");
    let reports = "
        UPDATE host_vitals SET vitals_at = now(), cpu_percent = 7;
        UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = gen_random_uuid()";
    store.sql(reports).await?;
    assert!(store.fleet_pictures_refresh(MINUTE_LONG).await?);
    assert_eq!(pictures(&store).await?.cpu.hosts(), 1);
    assert!(!store.fleet_pictures_refresh(MINUTE_LONG).await?, "once");
    Ok(())
}

#[tokio::test]
async fn presence_is_kept_for_a_day_and_its_five_minutes_have_one_row() -> Result<()> {
    let store = migrated().await?;
    let points_of_a_week = "
        INSERT INTO fleet_presence SELECT now() - n * interval '1 hour', 1, 1 FROM generate_series(-2, 7 * 24) n WHERE n <> 0";
    store.sql(points_of_a_week).await?;
    for _ in 0..3 {
        assert!(store.fleet_pictures_refresh(NOW).await?);
    }
    let kept = "SELECT count(*) FILTER (WHERE at < now() - interval '25 hours 1 minute'), count(*) FILTER (WHERE at > now()),
                       count(*) FILTER (WHERE online = 1) BETWEEN 24 AND 25, count(*) FILTER (WHERE online = 0) BETWEEN 1 AND 2
                  FROM fleet_presence";
    assert_eq!(store.sql(kept).await?, "0|0|t|t");
    Ok(())
}
