//! Leases: claimed, renewed, fenced, released, and one key among siblings.

use std::time::Duration;

use anyhow::Result;
use svc_sandbox::eventually;
use svc_store::{LeaseClaim, LeaseRenewal, NewInstance, Store};
use uuid::Uuid;

use crate::support::{PATIENCE, batch, migrated};

const OUTAGE_GRACE: Duration = Duration::from_secs(150);

const TTL: Duration = Duration::from_secs(600);

fn instance(kid: &str) -> NewInstance {
    NewInstance {
        id: Uuid::now_v7(),
        kid: kid.to_owned(),
        hostname: format!("host-of-{kid}"),
        version: "0.1.0".to_owned(),
        grpc_address: "0.0.0.0:9443".to_owned(),
        http_address: "0.0.0.0:8080".to_owned(),
    }
}

#[tokio::test]
async fn a_lease_is_claimed_renewed_and_given_back() -> Result<()> {
    let (_database, store) = migrated().await?;
    let mine = instance("a");
    assert_eq!(
        store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    assert_eq!(
        store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    let first = live(&store).await?;
    assert_eq!((first.len(), first[0].id), (1, mine.id));
    assert_eq!(first[0].hostname, "host-of-a");
    assert_eq!(
        store.lease_renew(mine.id, TTL).await?,
        LeaseRenewal::Renewed
    );
    assert!(live(&store).await?[0].expires_at > first[0].expires_at);
    assert!(store.lease_release(mine.id).await?);
    assert!(!store.lease_release(mine.id).await?);
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Gone);
    assert_eq!(
        store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Ended
    );
    assert!(live(&store).await?.is_empty());
    assert!(store.instances_list().await?[0].stopped_at.is_some());
    Ok(())
}

#[tokio::test]
async fn a_fenced_instance_cannot_renew() -> Result<()> {
    let (_database, store) = migrated().await?;
    let mine = instance("a");
    store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?;
    batch(&store, "UPDATE ingest_instances SET fenced = true").await?;
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Fenced);
    assert_eq!(
        store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Ended
    );
    assert_eq!(
        store.lease_renew(Uuid::nil(), TTL).await?,
        LeaseRenewal::Gone
    );
    assert!(live(&store).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_sibling_with_another_key_is_refused_while_the_first_lives() -> Result<()> {
    let (_database, store) = migrated().await?;
    let (first, second) = (instance("a"), instance("b"));
    store.lease_claim(&first, TTL, OUTAGE_GRACE).await?;
    let refused = store.lease_claim(&second, TTL, OUTAGE_GRACE).await?;
    let LeaseClaim::KidMismatch {
        kid,
        instance: whose,
        hostname,
        expires_in,
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((&*kid, whose, &*hostname), ("a", first.id, "host-of-a"));
    assert!(expires_in <= TTL && expires_in > TTL / 2);
    assert_eq!(
        store.lease_claim(&instance("a"), TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    batch(&store, "UPDATE ingest_instances SET expires_at = now()").await?;
    assert_eq!(
        store.lease_claim(&second, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    Ok(())
}

#[tokio::test]
async fn a_lease_lapses_by_the_databases_clock() -> Result<()> {
    let (_database, store) = migrated().await?;
    let mine = instance("a");
    store
        .lease_claim(&mine, Duration::from_millis(300), OUTAGE_GRACE)
        .await?;
    eventually("the lease lapses", PATIENCE, async || {
        live(&store).await.is_ok_and(|live| live.is_empty())
    })
    .await?;
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Gone);
    assert_eq!(
        store.lease_claim(&mine, TTL, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    Ok(())
}

#[tokio::test]
async fn of_two_keys_at_once_exactly_one_gets_in() -> Result<()> {
    let (_database, store) = migrated().await?;
    for _ in 0..20 {
        batch(&store, "DELETE FROM ingest_instances").await?;
        let (a, b) = (instance("a"), instance("b"));
        let claims = tokio::join!(
            store.lease_claim(&a, TTL, OUTAGE_GRACE),
            store.lease_claim(&b, TTL, OUTAGE_GRACE)
        );
        let claims = [claims.0?, claims.1?];
        let claimed = claims.iter().filter(|claim| **claim == LeaseClaim::Claimed);
        assert_eq!(claimed.count(), 1, "{claims:?}");
        assert_eq!(live(&store).await?.len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn the_clock_offset_to_a_server_on_this_machine_is_small() -> Result<()> {
    let (_database, store) = migrated().await?;
    let offset = store.database_clock_offset().await?;
    assert!(
        offset.abs() < jiff::SignedDuration::from_secs(10),
        "{offset}"
    );
    Ok(())
}

async fn live(store: &Store) -> Result<Vec<svc_store::InstanceRow>> {
    Ok(store.live_siblings().await?)
}
