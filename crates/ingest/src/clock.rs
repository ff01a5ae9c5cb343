//! The database's clock, as this instance knows it: its own, and how far off it is.
//! What instances must agree on is judged by it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use jiff::{SignedDuration, Timestamp};

#[derive(Clone, Debug, Default)]
pub struct DatabaseClock {
    /// In milliseconds: the database's clock minus ours.
    offset: Arc<AtomicI64>,
}

impl DatabaseClock {
    pub fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset.load(Ordering::Relaxed));
        let now = Timestamp::now();
        now.checked_add(offset).unwrap_or(now)
    }

    pub fn set_offset(&self, offset: SignedDuration) {
        let millis = i64::try_from(offset.as_millis()).unwrap_or_default();
        self.offset.store(millis, Ordering::Relaxed);
    }
}
