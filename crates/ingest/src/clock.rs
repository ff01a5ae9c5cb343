//! The database's clock as this instance knows it: the machine's clock plus a measured offset.
//! Everything that instances must agree on is judged by it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use svc_store::{Store, StoreError};

#[derive(Clone, Debug, Default)]
pub struct DatabaseClock {
    /// The database's clock minus this machine's, in milliseconds.
    offset: Arc<AtomicI64>,
}

impl DatabaseClock {
    pub fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset.load(Ordering::Relaxed));
        let now = Timestamp::now();
        now.checked_add(offset).unwrap_or(now)
    }

    /// Measures the offset.
    pub async fn synchronise(&self, store: &Store) -> Result<(), StoreError> {
        let offset = store.database_clock_offset().await?;
        let millis = i64::try_from(offset.as_millis()).unwrap_or_default();
        self.offset.store(millis, Ordering::Relaxed);
        Ok(())
    }
}
