//! Leases: claim, renewal, fencing, release, and one signing key among all instances.

use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use svc_sandbox::eventually;
use svc_store::{LeaseClaim, LeaseRenewal, NewInstance, SigningKeyUse};
use uuid::Uuid;

use crate::support::{PATIENCE, TestStore, migrated};

pub const OUTAGE_GRACE: Duration = Duration::from_secs(150);

const TTL: Duration = Duration::from_secs(600);

pub fn instance(kid: &str) -> NewInstance {
    NewInstance {
        id: Uuid::now_v7(),
        kid: kid.to_owned(),
        extra_kids: Vec::new(),
        hostname: format!("host-of-{kid}"),
        version: "0.1.0".to_owned(),
        grpc_address: "0.0.0.0:9443".to_owned(),
        http_address: "0.0.0.0:8080".to_owned(),
    }
}

async fn claim(store: &TestStore, instance: &NewInstance) -> Result<LeaseClaim> {
    Ok(store.lease_claim(instance, TTL, OUTAGE_GRACE).await?)
}

#[tokio::test]
async fn a_lease_is_claimed_renewed_and_released() -> Result<()> {
    let store = migrated().await?;
    let mine = instance("a");
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    let first = store.instances_live().await?;
    assert_eq!((first.len(), first[0].id), (1, mine.id));
    assert_eq!(first[0].hostname, "host-of-a");
    let renewal = store.lease_renew(mine.id, TTL).await?;
    assert_eq!(renewal, LeaseRenewal::Renewed);
    let renewed = store.instances_live().await?;
    assert!(renewed[0].expires_at > first[0].expires_at);
    assert!(store.lease_release(mine.id).await?);
    assert!(!store.lease_release(mine.id).await?);
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Gone);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Ended);
    assert!(store.instances_live().await?.is_empty());
    assert!(store.instances_list().await?[0].stopped_at.is_some());
    Ok(())
}

#[tokio::test]
async fn a_fenced_instance_can_neither_renew_nor_claim_its_lease() -> Result<()> {
    let store = migrated().await?;
    let mine = instance("a");
    claim(&store, &mine).await?;
    store
        .sql("UPDATE ingest_instances SET fenced = true")
        .await?;
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Fenced);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Ended);
    let unknown = store.lease_renew(Uuid::nil(), TTL).await?;
    assert_eq!(unknown, LeaseRenewal::Gone);
    assert!(store.instances_live().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn an_instance_with_another_key_is_refused_while_the_first_is_live() -> Result<()> {
    let store = migrated().await?;
    let (first, second) = (instance("a"), instance("b"));
    claim(&store, &first).await?;
    let refused = claim(&store, &second).await?;
    let LeaseClaim::KidMismatch {
        kid,
        instance: holder,
        hostname,
        expires_in,
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((&*kid, holder, &*hostname), ("a", first.id, "host-of-a"));
    assert!(expires_in <= TTL && expires_in > TTL / 2);
    assert_eq!(claim(&store, &instance("a")).await?, LeaseClaim::Claimed);
    let expire = "UPDATE ingest_instances SET expires_at = now()";
    store.sql(expire).await?;
    assert_eq!(claim(&store, &second).await?, LeaseClaim::Claimed);
    Ok(())
}

/// The first one is live with these keys; the second one claims.
#[tokio::test]
async fn instances_that_accept_each_others_keys_run_side_by_side() -> Result<()> {
    let store = migrated().await?;
    let with = |kid: &str, extra: &[&str]| NewInstance {
        extra_kids: extra.iter().map(ToString::to_string).collect(),
        ..instance(kid)
    };
    for (live, claiming, compatible) in [
        (with("old", &[]), with("old", &["new"]), true),
        (with("old", &["new"]), with("old", &["new"]), true),
        (with("old", &["new"]), with("new", &["old"]), true),
        (with("new", &["old"]), with("new", &[]), true),
        (with("old", &[]), with("new", &["old"]), false),
        (with("old", &["new"]), with("new", &[]), false),
        (with("old", &["x"]), with("new", &["x"]), false),
    ] {
        store.sql("DELETE FROM ingest_instances").await?;
        assert_eq!(claim(&store, &live).await?, LeaseClaim::Claimed);
        let row = &store.instances_live().await?[0];
        let rule = row.is_compatible_with(&claiming.kid, &claiming.extra_kids);
        let claimed = claim(&store, &claiming).await? == LeaseClaim::Claimed;
        assert_eq!((claimed, rule), (compatible, compatible), "{claiming:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_use_of_each_key_is_known() -> Result<()> {
    let store = migrated().await?;
    let mut mine = instance("old");
    mine.extra_kids = vec!["new".to_owned()];
    claim(&store, &mine).await?;
    claim(&store, &instance("old")).await?;
    let keys = store.signing_keys().await?;
    let uses = |keys: &[SigningKeyUse]| -> Vec<_> {
        let one = |key: &SigningKeyUse| (key.kid.clone(), key.signers, key.acceptors, key.live);
        keys.iter().map(one).collect()
    };
    let expected = [("old".to_owned(), 2, 2, 2), ("new".to_owned(), 0, 1, 2)];
    assert_eq!(uses(&keys), expected);
    assert!(keys[0].signed_until.is_some() && keys[1].signed_until.is_none());
    store
        .sql("UPDATE ingest_instances SET stopped_at = now(), expires_at = now() - interval '1 h'")
        .await?;
    let mut next = instance("new");
    next.extra_kids = vec!["old".to_owned()];
    claim(&store, &next).await?;
    let keys = store.signing_keys().await?;
    assert_eq!(
        uses(&keys),
        [("new".to_owned(), 1, 1, 1), ("old".to_owned(), 0, 1, 1)]
    );
    let until = keys[1].signed_until.expect("it signed");
    let ago = keys[1].accepted_since.duration_since(until);
    assert!(ago >= SignedDuration::from_mins(59), "{ago}");
    Ok(())
}

#[tokio::test]
async fn a_lease_expires_by_the_databases_clock() -> Result<()> {
    let store = migrated().await?;
    let mine = instance("a");
    let short = Duration::from_millis(300);
    store.lease_claim(&mine, short, OUTAGE_GRACE).await?;
    eventually("the lease expires", PATIENCE, async || {
        store
            .instances_live()
            .await
            .is_ok_and(|live| live.is_empty())
    })
    .await?;
    assert_eq!(store.lease_renew(mine.id, TTL).await?, LeaseRenewal::Gone);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    Ok(())
}

#[tokio::test]
async fn of_two_keys_that_start_at_once_exactly_one_gets_a_lease() -> Result<()> {
    let store = migrated().await?;
    for _ in 0..20 {
        store.sql("DELETE FROM ingest_instances").await?;
        let (a, b) = (instance("a"), instance("b"));
        let claims = tokio::join!(claim(&store, &a), claim(&store, &b));
        let claims = [claims.0?, claims.1?];
        let claimed = claims.iter().filter(|claim| **claim == LeaseClaim::Claimed);
        assert_eq!(claimed.count(), 1, "{claims:?}");
        assert_eq!(store.instances_live().await?.len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn the_clock_offset_to_a_server_on_this_machine_is_small() -> Result<()> {
    let offset = migrated().await?.database_clock_offset().await?.offset;
    assert!(offset.abs() < SignedDuration::from_secs(10), "{offset}");
    Ok(())
}
