//! Leases: claim, renewal, fencing, release, and one signing key among all instances.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use svc_store::{InstanceLoad, LeaseClaim, LeaseRenewal, NewInstance, SigningKeyUse, Swept};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{fixtures::*, support::*};

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

/// It accepts another key, too.
fn with(kid: &str, extra: &str) -> NewInstance {
    NewInstance {
        extra_kids: vec![extra.to_owned()],
        ..instance(kid)
    }
}

pub async fn renew(store: &TestStore, id: Uuid) -> Result<LeaseRenewal> {
    let load = InstanceLoad {
        agents: AGENTS,
        ..InstanceLoad::default()
    };
    Ok(store.lease_renew(id, TTL, &load, SWEEP_GRACE).await?)
}

/// A new instance with a lease.
pub async fn claimed(store: &TestStore, kid: &str) -> Result<NewInstance> {
    let instance = instance(kid);
    assert_eq!(claim(store, &instance).await?, LeaseClaim::Claimed);
    Ok(instance)
}

async fn claim(store: &TestStore, instance: &NewInstance) -> Result<LeaseClaim> {
    Ok(store.lease_claim(instance, TTL, OUTAGE_GRACE).await?)
}

#[tokio::test]
async fn a_lease_is_claimed_renewed_and_released() -> Result<()> {
    let store = migrated().await?;
    let mine = claimed(&store, "a").await?;
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    let first = store.instances_live().await?;
    assert_eq!((first.len(), first[0].id), (1, mine.id));
    assert_eq!(first[0].hostname, "host-of-a");
    let LeaseRenewal::Renewed {
        sweep_is_due: false,
        clock,
    } = renew(&store, mine.id).await?
    else {
        panic!("not renewed, or a sweep is due");
    };
    for clock in [clock, store.database_clock().await?] {
        let offset = clock
            .time_at(Instant::now())
            .duration_since(Timestamp::now());
        assert!(offset.abs() < SignedDuration::from_secs(10), "{offset}");
    }
    let renewed = store.instances_live().await?;
    assert!(renewed[0].expires_at > first[0].expires_at);
    let agents = store.sql("SELECT load->'agents' FROM ingest_instances");
    assert_eq!(agents.await?, AGENTS.to_string());
    assert!(store.lease_release(mine.id).await?);
    assert!(!store.lease_release(mine.id).await?);
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Gone);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Ended);
    assert!(store.instances_live().await?.is_empty());
    assert!(store.instances_list(1).await?[0].stopped_at.is_some());
    Ok(())
}

#[tokio::test]
async fn a_fenced_instance_can_neither_renew_nor_claim_its_lease() -> Result<()> {
    let store = migrated().await?;
    let mine = claimed(&store, "a").await?;
    let fence = "UPDATE ingest_instances SET fenced = true";
    store.sql(fence).await?;
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Fenced);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Ended);
    assert_eq!(renew(&store, Uuid::nil()).await?, LeaseRenewal::Gone);
    assert!(store.instances_live().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn an_instance_with_another_key_is_refused_while_the_first_is_live() -> Result<()> {
    let store = migrated().await?;
    let (first, second) = (claimed(&store, "a").await?, instance("b"));
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
    claimed(&store, "a").await?;
    let expire = "UPDATE ingest_instances SET expires_at = now()";
    store.sql(expire).await?;
    assert_eq!(claim(&store, &second).await?, LeaseClaim::Claimed);
    Ok(())
}

/// The first one is live with these keys; the second one claims.
#[tokio::test]
async fn instances_that_accept_each_others_keys_run_side_by_side() -> Result<()> {
    let store = migrated().await?;
    for (live, claiming, compatible) in [
        (instance("old"), with("old", "new"), true),
        (with("old", "new"), with("old", "new"), true),
        (with("old", "new"), with("new", "old"), true),
        (with("new", "old"), instance("new"), true),
        (instance("old"), with("new", "old"), false),
        (with("old", "new"), instance("new"), false),
        (with("old", "x"), with("new", "x"), false),
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
    claim(&store, &with("old", "new")).await?;
    claimed(&store, "old").await?;
    let uses = |keys: &[SigningKeyUse]| {
        let of = |key: &SigningKeyUse| {
            let counts = (key.signers, key.acceptors, key.live);
            format!("{} {counts:?}", key.kid)
        };
        keys.iter().map(of).collect::<Vec<_>>()
    };
    let keys = store.signing_keys().await?;
    assert_eq!(uses(&keys), ["old (2, 2, 2)", "new (0, 1, 2)"]);
    assert!(keys[0].signed_until.is_some() && keys[1].signed_until.is_none());
    let stop =
        "UPDATE ingest_instances SET stopped_at = now(), expires_at = now() - interval '1 h'";
    store.sql(stop).await?;
    claim(&store, &with("new", "old")).await?;
    let keys = store.signing_keys().await?;
    assert_eq!(uses(&keys), ["new (1, 1, 1)", "old (0, 1, 1)"]);
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
    let live = "SELECT count(*) FROM ingest_instances WHERE expires_at > now()";
    store.becomes(live, "0").await?;
    assert!(store.instances_live().await?.is_empty());
    assert_eq!(renew(&store, mine.id).await?, LeaseRenewal::Gone);
    assert_eq!(claim(&store, &mine).await?, LeaseClaim::Claimed);
    Ok(())
}

/// A renewal after each of these says that a sweep is due; the sweep finds it, and then none is due.
#[tokio::test]
async fn a_renewal_tells_what_a_sweep_would_find() -> Result<()> {
    let (store, _) = world().await?;
    let mine = claimed(&store, "a").await?;
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

/// The lease of an instance that all agents are connected to has expired so long ago.
async fn expire(store: &TestStore, instance: &NewInstance, ago: &str) -> Result<()> {
    let sql = format!(
        "UPDATE agent_state SET presence = 'online', cause = 'connected', instance_id = '{0}';
         UPDATE ingest_instances SET expires_at = now() - interval '{ago}' WHERE id = '{0}'",
        instance.id
    );
    store.sql(&sql).await?;
    Ok(())
}

/// A site whose only instance is claimed anew: agents may come back, whichever way it ended.
#[tokio::test]
async fn nothing_is_swept_for_a_while_after_no_instance_was_live() -> Result<()> {
    let (store, _) = world().await?;
    let lost = claimed(&store, "a").await?;
    expire(&store, &lost, "1 hour").await?;
    let mine = claimed(&store, "a").await?;
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
    let live = claimed(&store, "a").await?;
    let (lapsing, lost) = (claimed(&store, "a").await?, claimed(&store, "a").await?);
    for one in [&lapsing, &lost] {
        expire(&store, one, "1 hour").await?;
    }
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
        if witness {
            claimed(&store, "a").await?;
        }
        let (killed, started) = (claimed(&store, "a").await?, claimed(&store, "a").await?);
        expire(&store, &killed, "2 minutes").await?;
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
    let (dead, live) = (claimed(&store, "a").await?, claimed(&store, "a").await?);
    let set_back = "UPDATE ingest_instances SET expires_at = expires_at + interval '1 hour', renewed_at = renewed_at + interval '1 hour';
        UPDATE sweep_pause SET since = now() + interval '1 hour', until = now() + interval '2 hours'";
    let ahead =
        "SELECT count(*) FROM ingest_instances WHERE expires_at > now() + interval '11 minutes'";
    for renews in [true, false] {
        store.sql(set_back).await?;
        assert_eq!(store.sql(ahead).await?, "2");
        if renews {
            renew(&store, live.id).await?;
        } else {
            let refused = claim(&store, &instance("b")).await?;
            let in_term =
                matches!(refused, LeaseClaim::KidMismatch { expires_in, .. } if expires_in <= TTL);
            assert!(in_term, "{refused:?}");
        }
        assert_eq!(store.sql(ahead).await?, "0", "their terms begin again");
    }
    expire(&store, &dead, "2 minutes").await?;
    // A pause that begins in the future is over.
    assert_eq!(sweep(&store, live.id).await?, (1, 1, 0));
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
