//! Leases of instances: which instances are live, and with which signing key.
//!
//! **Purpose.** An instance that holds sessions keeps a lease and renews it. If it dies, its
//! lease expires, and a sweep of another instance ends its sessions (`sessions_sweep`).
//!
//! **Fencing.** The sweep first sets `fenced` on the expired lease, and only then ends the
//! sessions. `fenced` is final: the id can never renew, claim or open a session again. So an
//! instance that was only paused cannot act on a state that others have taken over. When it
//! wakes up, its renewal returns [`LeaseRenewal::Fenced`]; it claims a lease under a new id,
//! and `sessions_reclaim` moves those of its streams to the new id that are still the newest
//! of their agents. Opening a session locks the instance's row FOR SHARE and fencing locks it
//! FOR UPDATE, so the two exclude each other.
//!
//! **An expired lease is claimed and not renewed**, even if it is not fenced yet. Meanwhile an
//! instance with other keys may have started, and only the claim compares keys.
//!
//! **Clocks.** Only the database's clock counts. `now()` is the start of the transaction. If
//! the transaction waited for a lock, `now()` is in the past: other leases then look longer
//! than they are, and our own is shorter. Both errors are safe. If the clock is set forward, all
//! leases expire at once, and the first instance that claims finds no live one: nothing is swept for a while.
//! If it is set back, a lease that was renewed in the future would outlive its instance by the
//! size of the step; so its term begins again (`leases_restart`).
//!
//! **Cost.** Neither a claim nor fencing depends on the number of agents: after an outage one row,
//! `sweep_pause`, protects them all, and the sessions of a fenced instance end in batches.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    prelude::*, service::clock::ClockReading, statements::locks,
    values::instance_load::InstanceLoad,
};

#[derive(Debug, Clone)]
pub struct NewInstance {
    pub id: Uuid,
    /// The key that it signs with.
    pub kid: String,
    /// The keys whose JWTs it accepts besides.
    pub extra_kids: Vec<String>,
    pub hostname: String,
    pub version: String,
    pub grpc_address: String,
    pub http_address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseClaim {
    Claimed,
    /// A live instance signs with `kid`, and one of the two does not accept the other's JWTs.
    KidMismatch {
        kid: String,
        instance: Uuid,
        hostname: String,
        expires_in: Duration,
    },
    /// The lease of this id is fenced or was released. Use a new id.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRenewal {
    Renewed {
        /// Whether [`Store::leases_fence`] or [`Store::sessions_sweep`] has anything to do.
        sweep_is_due: bool,
        clock: ClockReading,
    },
    /// A sweep declared this instance lost. It needs a new id.
    Fenced,
    /// There is no lease to renew: it expired, was released, or never existed. Claim one.
    Gone,
}

record! {
    #[derive(Debug, Clone, Serialize)]
    pub struct InstanceRecord {
        pub id: Uuid,
        pub kid: String,
        pub extra_kids: Vec<String>,
        pub hostname: String,
        pub version: String,
        pub grpc_address: String,
        pub http_address: String,
        pub started_at: Timestamp,
        pub renewed_at: Timestamp,
        pub expires_at: Timestamp,
        pub fenced: bool,
        pub stopped_at: Option<Timestamp>,
        /// Whether it held a lease when this was read, by the database's clock.
        pub live: bool,
        #[serde(skip)]
        load: Option<Value>,
    }
}

text_enum! {
    pub enum InstanceState {
        Live = "live",
        /// It gave its lease back.
        Stopped = "stopped",
        /// Its lease expired, and nobody has declared it lost yet.
        Lapsed = "lapsed",
        Fenced = "fenced",
    }
}

impl InstanceRecord {
    pub fn state(&self) -> InstanceState {
        match (self.fenced, self.stopped_at, self.live) {
            (true, ..) => InstanceState::Fenced,
            (_, Some(_), _) => InstanceState::Stopped,
            (_, _, true) => InstanceState::Live,
            _ => InstanceState::Lapsed,
        }
    }

    /// How full it said it is, unless it has said nothing yet or says it in a way that this version does not know.
    pub fn load(&self) -> Option<InstanceLoad> {
        InstanceLoad::deserialize(self.load.as_ref()?).ok()
    }

    /// How many agents have a stream with it, as it said itself.
    pub fn streams(&self) -> i64 {
        self.load().map_or(0, |load| load.agents)
    }

    /// Whether it accepts JWTs that are signed with this key.
    pub fn accepts(&self, kid: &str) -> bool {
        self.kid == kid || self.extra_kids.iter().any(|extra| extra == kid)
    }

    /// The rule by which [`Store::lease_claim`] compares keys: each of the two accepts the
    /// JWTs that the other one signs.
    pub fn is_compatible_with(&self, kid: &str, extra_kids: &[String]) -> bool {
        self.accepts(kid) && (self.kid == kid || extra_kids.contains(&self.kid))
    }
}

impl Store {
    /// Compares the keys of `instance` with those of the live instances and records a lease.
    /// Two instances are compatible if each accepts the other's signing key. One lock covers
    /// both steps, so of two instances that are not compatible only one gets a lease.
    /// Claiming the same id again renews the lease, so the call can be repeated after a lost
    /// reply.
    pub async fn lease_claim(
        &self,
        instance: &NewInstance,
        ttl: Duration,
        outage_grace: Duration,
    ) -> Result<LeaseClaim> {
        self.run("lease_claim", Watch, async |tx| {
            tx.lock(locks::LEASE_CLAIM).await?;
            lease_claim_grace(&tx, instance, outage_grace).await?;
            lease_claim_restart(&tx, ttl).await?;
            match lease_claim_mismatch(&tx, instance).await? {
                Some(mismatch) => Ok(mismatch),
                None => lease_claim_insert(&tx, instance, ttl).await,
            }
        })
        .await
    }

    /// Renews a lease that has not expired, and records the instance's load beside it. Everything that every
    /// instance does every few seconds and that fits is in this one transaction.
    pub async fn lease_renew(
        &self,
        id: Uuid,
        ttl: Duration,
        load: &InstanceLoad,
        sweep_grace: Duration,
    ) -> Result<LeaseRenewal> {
        let sql = "-- lease_renew
            SELECT renewed, fenced, sweep, clock FROM lease_renew($1, $2, $3, $4)";
        let params = params![id, ttl.as_secs_f64(), Json(load), sweep_grace.as_secs_f64()];
        let asked = Instant::now();
        let rows = self.call("lease_renew", Watch, sql, &params);
        let Some(row) = rows.await?.into_iter().next() else {
            return Ok(LeaseRenewal::Gone);
        };
        Ok(match (row.try_get("renewed")?, row.try_get("fenced")?) {
            (true, _) => LeaseRenewal::Renewed {
                clock: ClockReading::received(asked, row.try_get("clock")?),
                sweep_is_due: row.try_get("sweep")?,
            },
            (false, true) => LeaseRenewal::Fenced,
            (false, false) => LeaseRenewal::Gone,
        })
    }

    /// Fences the leases that expired more than `grace` ago. Returns how many. If no other instance was live all the
    /// time, the agents may have had none to go to: then the grace is that after an outage (`instances_lapsed`).
    ///
    /// Does nothing unless `sweeper` holds a valid lease when the statement runs. Otherwise a
    /// sweep that was delayed by an outage of the database would find every lease expired.
    pub async fn leases_fence(&self, sweeper: Uuid, grace: Duration) -> Result<i32> {
        let sql = "-- leases_fence\nSELECT leases_fence($1, $2)";
        let params = params![sweeper, grace.as_secs_f64()];
        let rows = self.call("leases_fence", Watch, sql, &params);
        rows.await?.first().map_or(Ok(0), |row| Ok(row.try_get(0)?))
    }

    /// Ends a lease. Returns false if there was none.
    pub async fn lease_release(&self, id: Uuid) -> Result<bool> {
        let sql = "-- lease_release
            UPDATE ingest_instances
               SET stopped_at = now(), expires_at = least(expires_at, now())
             WHERE id = $1 AND NOT fenced AND stopped_at IS NULL";
        self.run("lease_release", Watch, async |tx| {
            Ok(tx.execute(sql, &params![id]).await? == 1)
        })
        .await
    }

    /// The instances that hold a lease now, oldest first.
    pub async fn instances_live(&self) -> Result<Vec<InstanceRecord>> {
        let mut rows = self.instances_list(1000).await?;
        rows.retain(|row| row.live);
        rows.reverse();
        Ok(rows)
    }

    /// At most `limit` instances: those that hold a lease now before the others, and the newest first.
    pub async fn instances_list(&self, limit: i64) -> Result<Vec<InstanceRecord>> {
        let sql = "-- instances_list
            SELECT id, kid, extra_kids, hostname, version, grpc_address, http_address, started_at,
                   renewed_at, expires_at, fenced, stopped_at,
                   NOT fenced AND stopped_at IS NULL AND expires_at > now() AS live, load
              FROM ingest_instances
             ORDER BY live DESC, started_at DESC, id DESC LIMIT $1";
        let params = params![limit];
        self.read_all("instances_list", Watch, sql, &params).await
    }
}

async fn lease_claim_mismatch(tx: &Tx, instance: &NewInstance) -> Result<Option<LeaseClaim>> {
    let sql = "-- lease_claim
        SELECT kid, id, hostname, extract(epoch FROM expires_at - now())::float8
          FROM ingest_instances
         WHERE NOT fenced AND stopped_at IS NULL AND expires_at > now()
           AND kid <> $1 AND id <> $2
           AND NOT ($1 = ANY (extra_kids) AND kid = ANY ($3))
         ORDER BY expires_at DESC LIMIT 1";
    let params = params![instance.kid, instance.id, instance.extra_kids];
    let Some(row) = tx.query_opt(sql, &params).await? else {
        return Ok(None);
    };
    let expires_in = Duration::try_from_secs_f64(row.try_get(3)?);
    Ok(Some(LeaseClaim::KidMismatch {
        kid: row.try_get(0)?,
        instance: row.try_get(1)?,
        hostname: row.try_get(2)?,
        expires_in: expires_in.unwrap_or_default(),
    }))
}

/// Protects sessions after an outage. An agent may count as offline only if the service was
/// able to receive its heartbeats. An instance that finds no other live lease cannot tell how long
/// there was none, because all instances or the database were away. So nothing is swept for
/// `grace`: expired leases may be claimed again, and drained agents may reconnect. While another
/// instance is live, the outage was this instance's own.
async fn lease_claim_grace(tx: &Tx, instance: &NewInstance, grace: Duration) -> Result<()> {
    let sql = "-- lease_claim
        SELECT sweep_postpone($1)
         WHERE NOT EXISTS (SELECT FROM ingest_instances
                            WHERE NOT fenced AND stopped_at IS NULL AND expires_at > now()
                              AND renewed_at <= clock_timestamp() AND id <> $2)";
    let params = params![grace.as_secs_f64(), instance.id];
    tx.query_opt(sql, &params).await.map(drop)
}

/// A lease that was renewed in the future is from before the clock was set back. It proves no life:
/// its term begins again.
async fn lease_claim_restart(tx: &Tx, ttl: Duration) -> Result<()> {
    let sql = "-- lease_claim\nSELECT leases_restart($1)";
    let params = params![ttl.as_secs_f64()];
    tx.query_one(sql, &params).await.map(drop)
}

async fn lease_claim_insert(tx: &Tx, instance: &NewInstance, ttl: Duration) -> Result<LeaseClaim> {
    let sql = "-- lease_claim
        INSERT INTO ingest_instances AS mine
               (id, kid, extra_kids, hostname, version, grpc_address, http_address, expires_at)
        VALUES ($1, $2, $8, $3, $4, $5, $6, now() + make_interval(secs => $7))
        ON CONFLICT (id) DO UPDATE
           SET renewed_at = now(), expires_at = excluded.expires_at
         WHERE NOT mine.fenced AND mine.stopped_at IS NULL AND mine.kid = excluded.kid";
    let params = params![
        instance.id,
        instance.kid,
        instance.hostname,
        instance.version,
        instance.grpc_address,
        instance.http_address,
        ttl.as_secs_f64(),
        instance.extra_kids
    ];
    match tx.execute(sql, &params).await? {
        0 => Ok(LeaseClaim::Ended),
        _ => Ok(LeaseClaim::Claimed),
    }
}
