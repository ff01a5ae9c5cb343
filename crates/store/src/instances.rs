//! Leases: which instances of the service are alive, and with which key.
//!
//! Only the database's clock counts. `now()` is the start of the transaction:
//! where a lock made us wait it is early, which makes siblings look more alive
//! and our own lease shorter, and both err on the safe side.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::StoreError;
use crate::locks;
use crate::pool::{Bulkhead, Store};
use crate::tx::Tx;

#[derive(Debug, Clone)]
pub struct NewInstance {
    pub id: Uuid,
    pub kid: String,
    pub hostname: String,
    pub version: String,
    pub grpc_address: String,
    pub http_address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseClaim {
    Claimed,
    /// A live sibling signs with another key: theirs is `kid`.
    KidMismatch {
        kid: String,
        instance: Uuid,
        hostname: String,
        expires_in: Duration,
    },
    /// The id belonged to a lease that is fenced or was given back: take a new id.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRenewal {
    Renewed,
    /// Somebody declared this instance lost; it needs a new id.
    Fenced,
    /// There is nothing to renew: it lapsed, was given back, or never was. Claim it.
    Gone,
}

#[derive(Debug, Clone, Serialize)]
pub struct InstanceRow {
    pub id: Uuid,
    pub kid: String,
    pub hostname: String,
    pub version: String,
    pub grpc_address: String,
    pub http_address: String,
    pub started_at: Timestamp,
    pub renewed_at: Timestamp,
    pub expires_at: Timestamp,
    pub fenced: bool,
    pub stopped_at: Option<Timestamp>,
    /// By the database's clock, at the time of asking.
    pub live: bool,
}

impl Store {
    /// Compares `instance` with its live siblings and records it, under one
    /// lock: of two instances with different keys only one can come first.
    /// Claiming the same id again renews it, so a lost reply does no harm.
    pub async fn lease_claim(
        &self,
        instance: &NewInstance,
        ttl: Duration,
        outage_grace: Duration,
    ) -> Result<LeaseClaim, StoreError> {
        self.run("lease_claim", Bulkhead::Watch, async |tx| {
            lease_claim_lock(&tx).await?;
            match lease_claim_mismatch(&tx, instance).await? {
                Some(mismatch) => Ok(mismatch),
                None => {
                    lease_claim_grace(&tx, instance, outage_grace).await?;
                    lease_claim_insert(&tx, instance, ttl).await
                }
            }
        })
        .await
    }

    /// A lease that lapsed is not renewed but claimed: a sibling with another
    /// key may have come meanwhile.
    pub async fn lease_renew(&self, id: Uuid, ttl: Duration) -> Result<LeaseRenewal, StoreError> {
        self.run("lease_renew", Bulkhead::Watch, async |tx| {
            if lease_renew_update(&tx, id, ttl).await? {
                return Ok(LeaseRenewal::Renewed);
            }
            lease_renew_refusal(&tx, id).await
        })
        .await
    }

    /// The clean end of a lease. False where there was none to give back.
    pub async fn lease_release(&self, id: Uuid) -> Result<bool, StoreError> {
        let sql = "-- lease_release
            UPDATE ingest_instances
               SET stopped_at = now(), expires_at = least(expires_at, now())
             WHERE id = $1 AND NOT fenced AND stopped_at IS NULL";
        self.run("lease_release", Bulkhead::Watch, async |tx| {
            Ok(tx.execute(sql, &[(&id, Type::UUID)]).await? == 1)
        })
        .await
    }

    /// The instances that hold a lease now, oldest first.
    pub async fn instances_live(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let mut rows = self.instances_list().await?;
        rows.retain(|row| row.live);
        Ok(rows)
    }

    /// The newest thousand lives of instances, oldest first.
    pub async fn instances_list(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let sql = "-- instances_list
            SELECT * FROM (
                SELECT id, kid, hostname, version, grpc_address, http_address, started_at,
                       renewed_at, expires_at, fenced, stopped_at,
                       NOT fenced AND stopped_at IS NULL AND expires_at > now() AS live
                  FROM ingest_instances
                 ORDER BY expires_at DESC LIMIT 1000) newest
             ORDER BY started_at, id";
        let rows = self
            .read("instances_list", Bulkhead::Watch, sql, &[])
            .await?;
        rows.iter().map(InstanceRow::from_row).collect()
    }

    /// The database's clock minus ours, taken half way through the round trip.
    pub async fn database_clock_offset(&self) -> Result<SignedDuration, StoreError> {
        let sql = "-- database_clock_offset\nSELECT clock_timestamp()";
        self.run("database_clock_offset", Bulkhead::Watch, async |tx| {
            let asked = Timestamp::now();
            let theirs: Timestamp = tx.query_one(sql, &[]).await?.try_get(0)?;
            let trip = Timestamp::now().duration_since(asked);
            Ok(theirs.duration_since(asked) - trip / 2)
        })
        .await
    }
}

async fn lease_claim_lock(tx: &Tx) -> Result<(), StoreError> {
    let sql = "-- lease_claim\nSELECT pg_advisory_xact_lock($1)";
    tx.execute(sql, &[(&locks::LEASE_CLAIM, Type::INT8)])
        .await?;
    Ok(())
}

async fn lease_claim_mismatch(
    tx: &Tx,
    instance: &NewInstance,
) -> Result<Option<LeaseClaim>, StoreError> {
    let sql = "-- lease_claim
        SELECT kid, id, hostname, extract(epoch FROM expires_at - now())::float8
          FROM ingest_instances
         WHERE NOT fenced AND stopped_at IS NULL AND expires_at > now()
           AND kid <> $1 AND id <> $2
         ORDER BY expires_at DESC LIMIT 1";
    let params = [
        (&instance.kid as _, Type::TEXT),
        (&instance.id as _, Type::UUID),
    ];
    let row = tx.query_opt(sql, &params).await?;
    row.map(|row| mismatch_from_row(&row)).transpose()
}

fn mismatch_from_row(row: &Row) -> Result<LeaseClaim, StoreError> {
    let expires_in = Duration::try_from_secs_f64(row.try_get(3)?);
    Ok(LeaseClaim::KidMismatch {
        kid: row.try_get(0)?,
        instance: row.try_get(1)?,
        hostname: row.try_get(2)?,
        expires_in: expires_in.unwrap_or_default(),
    })
}

/// Offline clocks run only while the service could hear. Who comes with no live
/// sibling, or finds its own lease lapsed, cannot know whether the others, or the
/// database, were away: every lapsed lease gets time to be claimed again, and every
/// drained agent time to come back.
async fn lease_claim_grace(
    tx: &Tx,
    instance: &NewInstance,
    grace: Duration,
) -> Result<(), StoreError> {
    if !lease_claim_after_outage(tx, instance.id).await? {
        return Ok(());
    }
    let leases = "-- lease_claim
        UPDATE ingest_instances
           SET grace_until = now() + make_interval(secs => $1)
         WHERE NOT fenced AND stopped_at IS NULL AND expires_at <= now()";
    let drained = "-- lease_claim
        UPDATE agent_state s
           SET online_until = greatest(s.online_until, now() + make_interval(secs => $1))
          FROM (SELECT agent_id FROM agent_state
                 WHERE online_until IS NOT NULL ORDER BY agent_id FOR UPDATE) locked
         WHERE s.agent_id = locked.agent_id AND s.online_until IS NOT NULL";
    for sql in [leases, drained] {
        tx.execute(sql, &[(&grace.as_secs_f64(), Type::FLOAT8)])
            .await?;
    }
    Ok(())
}

async fn lease_claim_after_outage(tx: &Tx, id: Uuid) -> Result<bool, StoreError> {
    let sql = "-- lease_claim
        SELECT coalesce(bool_or(id = $1 AND expires_at <= now()), false)
            OR NOT coalesce(bool_or(id <> $1 AND expires_at > now()), false)
          FROM ingest_instances WHERE NOT fenced AND stopped_at IS NULL";
    Ok(tx.query_one(sql, &[(&id, Type::UUID)]).await?.try_get(0)?)
}

async fn lease_claim_insert(
    tx: &Tx,
    instance: &NewInstance,
    ttl: Duration,
) -> Result<LeaseClaim, StoreError> {
    let sql = "-- lease_claim
        INSERT INTO ingest_instances AS mine
               (id, kid, hostname, version, grpc_address, http_address, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7))
        ON CONFLICT (id) DO UPDATE
           SET renewed_at = now(), expires_at = excluded.expires_at
         WHERE NOT mine.fenced AND mine.stopped_at IS NULL AND mine.kid = excluded.kid";
    let params = [
        (&instance.id as _, Type::UUID),
        (&instance.kid as _, Type::TEXT),
        (&instance.hostname as _, Type::TEXT),
        (&instance.version as _, Type::TEXT),
        (&instance.grpc_address as _, Type::TEXT),
        (&instance.http_address as _, Type::TEXT),
        (&ttl.as_secs_f64() as _, Type::FLOAT8),
    ];
    match tx.execute(sql, &params).await? {
        0 => Ok(LeaseClaim::Ended),
        _ => Ok(LeaseClaim::Claimed),
    }
}

async fn lease_renew_update(tx: &Tx, id: Uuid, ttl: Duration) -> Result<bool, StoreError> {
    let sql = "-- lease_renew
        UPDATE ingest_instances
           SET renewed_at = now(), expires_at = now() + make_interval(secs => $2)
         WHERE id = $1 AND NOT fenced AND stopped_at IS NULL AND expires_at > now()";
    let ttl = ttl.as_secs_f64();
    let params = [(&id as _, Type::UUID), (&ttl as _, Type::FLOAT8)];
    Ok(tx.execute(sql, &params).await? == 1)
}

async fn lease_renew_refusal(tx: &Tx, id: Uuid) -> Result<LeaseRenewal, StoreError> {
    let sql = "-- lease_renew
        SELECT FROM ingest_instances WHERE id = $1 AND fenced";
    match tx.query_opt(sql, &[(&id, Type::UUID)]).await? {
        Some(_) => Ok(LeaseRenewal::Fenced),
        None => Ok(LeaseRenewal::Gone),
    }
}

impl InstanceRow {
    fn from_row(row: &Row) -> Result<InstanceRow, StoreError> {
        Ok(InstanceRow {
            id: row.try_get("id")?,
            kid: row.try_get("kid")?,
            hostname: row.try_get("hostname")?,
            version: row.try_get("version")?,
            grpc_address: row.try_get("grpc_address")?,
            http_address: row.try_get("http_address")?,
            started_at: row.try_get("started_at")?,
            renewed_at: row.try_get("renewed_at")?,
            expires_at: row.try_get("expires_at")?,
            fenced: row.try_get("fenced")?,
            stopped_at: row.try_get("stopped_at")?,
            live: row.try_get("live")?,
        })
    }
}
