//! Arrival hours: made ahead, and sealed when a newer one has begun.

use jiff::Timestamp;
use tokio_postgres::types::Type;

use crate::{
    error::StoreError,
    locks,
    pool::{Bulkhead, Store},
    tx::Tx,
};

/// The hours before the newest one that has begun. That one stays open, so that there is always one.
const PAST: &str = "-- hours_seal
    SELECT arrived_hour FROM sample_hours
     WHERE NOT sealed
       AND arrived_hour < (SELECT max(arrived_hour) FROM sample_hours WHERE NOT sealed AND arrived_hour <= samples_now())
     ORDER BY arrived_hour";

impl Store {
    /// Makes the partitions for the next hours, where they are missing. Returns how many were.
    pub async fn hours_create(&self) -> Result<i32, StoreError> {
        let enough = "-- hours_create
            SELECT count(*) >= 3 FROM sample_hours WHERE NOT sealed AND arrived_hour > samples_now()";
        let create = "-- hours_create\nSELECT sample_hours_ensure()";
        self.run("hours_create", Bulkhead::Maintenance, async |tx| {
            if tx.query_one(enough, &[]).await?.try_get(0)? {
                return Ok(0);
            }
            tx.lock(locks::SCHEMA).await?;
            Ok(tx.query_one(create, &[]).await?.try_get(0)?)
        })
        .await
    }

    /// Seals the past hours, the oldest first. Returns how many.
    pub async fn hours_seal(&self) -> Result<usize, StoreError> {
        let past = self
            .run("hours_seal", Bulkhead::Maintenance, async |tx| {
                let rows = tx.query(PAST, &[]).await?;
                let hours = rows.iter().map(|row| Ok(row.try_get(0)?));
                hours.collect::<Result<Vec<Timestamp>, StoreError>>()
            })
            .await?;
        for hour in &past {
            let seal = async |tx: Tx| tx.hour_seal(*hour).await;
            self.run("hours_seal", Bulkhead::Maintenance, seal).await?;
        }
        Ok(past.len())
    }
}

impl Tx {
    /// Waits for the writers of the hour; see `sample_hour_take`. The lock is a statement of its own, so that the
    /// UPDATE sees what they committed.
    async fn hour_seal(&self, hour: Timestamp) -> Result<(), StoreError> {
        let params = [(&hour as _, Type::TIMESTAMPTZ)];
        let lock = "-- hours_seal
            SELECT pg_advisory_xact_lock(1937137513, (extract(epoch FROM $1) / 3600)::integer)";
        self.execute(lock, &params).await?;
        let seal = "-- hours_seal\nUPDATE sample_hours SET sealed = true WHERE arrived_hour = $1";
        self.execute(seal, &params).await.map(drop)
    }
}
