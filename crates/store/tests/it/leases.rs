//! Leases: claim, renewal, fencing, release, and one signing key among all instances.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use svc_sandbox::eventually;
use svc_store::{
    ClockReading, InstanceLoad, LeaseClaim, LeaseRenewal, NewInstance, SigningKeyUse, Swept,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    fixtures::world,
    support::{PATIENCE, TestStore, migrated},
};

pub const OUTAGE_GRACE: Duration = Duration::from_secs(150);

const TTL: Duration = Duration::from_secs(600);
const SWEEP_GRACE: Duration = Duration::from_secs(60);
const AGENTS: i64 = 7;

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

pub async fn renew(store: &TestStore, id: Uuid) -> Result<LeaseRenewal> {
    let load = InstanceLoad {
        agents: AGENTS,
        ..InstanceLoad::default()
    };
    Ok(store.lease_renew(id, TTL, &load, SWEEP_GRACE).await?)
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
    let renewal = renew(&store, mine.id).await?;
    let LeaseRenewal::Renewed {
        sweep_is_due,
        clock,
    } = renewal
    else {
        panic!("{renewal:?}");
    };
    assert!(!sweep_is_due);
    assert_is_now(&clock);
    let renewed = store.instances_live().await?;
    assert!(renewed[0].expires_at > first[0].expires_at);
    let agents = store.sql("SELECT load->'agents' FROM ingest_instances");
    assert_eq!(agents.await?, AGENTS.to_string());
    assert!(store.lease_release(mine.id).await?);
    assert!(!store.lease_release(mine.id).await?);
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Gone);
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
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Fenced);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Ended);
    let unknown = renew(&store, Uuid::nil()).await?;
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
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Gone);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    Ok(())
}

/// A renewal after each of these says that a sweep is due; the sweep finds it, and then none is due.
#[tokio::test]
async fn a_renewal_tells_what_a_sweep_would_find() -> Result<()> {
    let (store, _) = world().await?;
    let mine = instance("a");
    claim(&store, &mine).await?;
    let other = format!(
        "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at)
         VALUES ('{}', 'a', '', '', '', '', now() - interval '2 minutes')",
        instance("a").id
    );
    let lost = "UPDATE agent_state s SET instance_id = i.id, presence = 'online', presence_since = now(), cause = 'connected'
                  FROM ingest_instances i WHERE i.fenced";
    let drained =
        "UPDATE agent_state SET presence = 'online', online_until = now() - interval '1 second'";
    let set_back =
        "UPDATE agent_state SET presence = 'online', online_until = now() + interval '1 hour'";
    let old = "UPDATE ingest_instances SET expires_at = now() - interval '31 days' WHERE fenced";
    let nothing = "SELECT";
    for (change, fenced, lost, undrained) in [
        (other.as_str(), 1, 0, 0),
        (lost, 0, 1, 0),
        (drained, 0, 0, 1),
        (set_back, 0, 0, 0),
        (old, 0, 0, 0),
        // It is deleted after it has been swept.
        (nothing, 0, 0, 0),
    ] {
        store.sql(change).await?;
        assert!(sweep_is_due(&store, mine.id).await?, "{change}");
        assert_eq!(sweep(&store, mine.id).await?, (fenced, lost, undrained));
    }
    assert!(!sweep_is_due(&store, mine.id).await?);
    let left = store.sql("SELECT count(*) FROM ingest_instances").await?;
    assert_eq!(left, "1");
    let drained = "SELECT online_until <= now() + interval '15 minutes' FROM agent_state";
    assert_eq!(store.sql(drained).await?, "t");
    Ok(())
}

/// Fences leases, ends one batch of sessions: the leases fenced, the sessions of lost instances, and those drained for too long.
pub async fn sweep(store: &TestStore, sweeper: Uuid) -> Result<(i32, i32, i32)> {
    let fenced = store.leases_fence(sweeper, SWEEP_GRACE).await?;
    let Swept { lost, undrained } = store.sessions_sweep(sweeper, SWEEP_GRACE).await?;
    Ok((fenced, lost, undrained))
}

async fn sweep_is_due(store: &TestStore, id: Uuid) -> Result<bool> {
    match renew(store, id).await? {
        LeaseRenewal::Renewed { sweep_is_due, .. } => Ok(sweep_is_due),
        other => anyhow::bail!("{other:?}"),
    }
}

/// A site whose only instance is claimed anew: agents may come back, whichever way it ended.
#[tokio::test]
async fn nothing_is_swept_for_a_while_after_no_instance_was_live() -> Result<()> {
    let (store, _) = world().await?;
    let (lost, mine) = (instance("a"), instance("a"));
    claim(&store, &lost).await?;
    let agents = format!(
        "UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = '{}';
         UPDATE ingest_instances SET expires_at = now() - interval '1 hour'",
        lost.id
    );
    store.sql(&agents).await?;
    claim(&store, &mine).await?;
    assert!(!sweep_is_due(&store, mine.id).await?);
    assert_eq!(sweep(&store, mine.id).await?, (0, 0, 0));
    store.sql("UPDATE sweep_pause SET until = now()").await?;
    assert!(sweep_is_due(&store, mine.id).await?);
    assert_eq!(sweep(&store, mine.id).await?, (1, 1, 0));
    Ok(())
}

/// The other instance is live all the time, so the lapse was this one's own and protects no lost instance.
#[tokio::test]
async fn an_instance_that_lapses_beside_a_live_one_delays_no_sweep() -> Result<()> {
    let (store, _) = world().await?;
    let (live, lapsing, lost) = (instance("a"), instance("a"), instance("a"));
    for one in [&live, &lapsing, &lost] {
        claim(&store, one).await?;
    }
    let ended = format!(
        "UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = '{0}';
         UPDATE ingest_instances SET expires_at = now() - interval '1 hour' WHERE id IN ('{0}', '{1}')",
        lost.id, lapsing.id
    );
    store.sql(&ended).await?;
    assert_eq!(claim(&store, &lapsing).await?, LeaseClaim::Claimed);
    assert_eq!(sweep(&store, live.id).await?, (1, 1, 0));
    Ok(())
}

/// An instance is killed and started again before its lease expires. What the new one finds, a minute after the expiry, depends on
/// whether a third one was live all the time.
#[tokio::test]
async fn after_a_quick_restart_agents_get_the_grace_of_an_outage_unless_another_instance_was_live()
-> Result<()> {
    for (witness, expected) in [(false, (0, 0, 0)), (true, (1, 1, 0))] {
        let (store, _) = world().await?;
        let (killed, started, other) = (instance("a"), instance("a"), instance("a"));
        if witness {
            claim(&store, &other).await?;
        }
        claim(&store, &killed).await?;
        claim(&store, &started).await?;
        let expired = format!(
            "UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = '{0}';
             UPDATE ingest_instances SET expires_at = now() - interval '2 minutes' WHERE id = '{0}'",
            killed.id
        );
        store.sql(&expired).await?;
        assert_eq!(sweep_is_due(&store, started.id).await?, witness);
        assert_eq!(sweep(&store, started.id).await?, expected);
        let later = "UPDATE ingest_instances SET expires_at = expires_at - outage_grace()
                      WHERE expires_at < now() AND NOT fenced";
        store.sql(later).await?;
        let (fenced, lost, _) = sweep(&store, started.id).await?;
        assert_eq!((fenced + expected.0, lost + expected.1), (1, 1));
    }
    Ok(())
}

/// The clock is set back by an hour: every time that was written before lies an hour ahead.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_lease_alive() -> Result<()> {
    let (store, _) = world().await?;
    let (dead, live, other_key) = (instance("a"), instance("a"), instance("b"));
    claim(&store, &dead).await?;
    claim(&store, &live).await?;
    let set_back = "UPDATE ingest_instances SET expires_at = expires_at + interval '1 hour', renewed_at = renewed_at + interval '1 hour';
        UPDATE sweep_pause SET since = now() + interval '1 hour', until = now() + interval '2 hours'";
    let ahead = async || {
        let sql = "SELECT count(*) FROM ingest_instances WHERE expires_at > now() + interval '11 minutes'";
        store.sql(sql).await
    };
    for look in 0..2 {
        store.sql(set_back).await?;
        assert_eq!(ahead().await?, "2");
        if look == 0 {
            renew(&store, live.id).await?;
        } else {
            let refused = claim(&store, &other_key).await?;
            assert!(
                matches!(refused, LeaseClaim::KidMismatch { expires_in, .. } if expires_in <= TTL)
            );
        }
        assert_eq!(ahead().await?, "0", "their terms begin again");
    }
    let expired = format!(
        "UPDATE ingest_instances SET expires_at = now() - interval '2 minutes' WHERE id = '{}'",
        dead.id
    );
    store.sql(&expired).await?;
    let swept = sweep(&store, live.id).await?;
    assert_eq!(
        swept,
        (1, 0, 0),
        "a pause that begins in the future is over"
    );
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
async fn the_clock_of_a_server_on_this_machine_is_read_correctly() -> Result<()> {
    assert_is_now(&migrated().await?.database_clock().await?);
    Ok(())
}

fn assert_is_now(clock: &ClockReading) {
    let time = clock.time_at(Instant::now());
    let offset = time.duration_since(Timestamp::now());
    assert!(offset.abs() < SignedDuration::from_secs(10), "{offset}");
}
