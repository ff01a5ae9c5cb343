//! Readings of the database's clock.
//!
//! Whatever instances must agree on is dated by the database. A reading is tied to a moment of this machine's steady clock, so that
//! neither a wrong wall clock nor a step of it changes the time that follows from the reading.

use std::time::Duration;

use tokio::time::Instant;

use crate::prelude::*;

/// What the database's clock showed at a moment of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub time: Timestamp,
    /// The middle of the round trip.
    pub at: Instant,
    /// How wrong it may be: half of the round trip.
    pub error: Duration,
}

impl ClockReading {
    /// The database's answer has just arrived.
    pub(crate) fn received(asked: Instant, time: Timestamp) -> Self {
        let error = asked.elapsed() / 2;
        let at = asked + error;
        Self { time, at, error }
    }

    /// The database's time at a moment of ours, if neither clock is set meanwhile.
    pub fn time_at(&self, moment: Instant) -> Timestamp {
        let time = match moment.checked_duration_since(self.at) {
            Some(later) => self.time.checked_add(later),
            None => self.time.checked_sub(self.at - moment),
        };
        time.unwrap_or(self.time)
    }
}

impl Store {
    pub async fn database_clock(&self) -> Result<ClockReading> {
        let sql = "-- database_clock\nSELECT clock_timestamp()";
        self.run("database_clock", Watch, async |tx| {
            let asked = Instant::now();
            let time = tx.query_value(sql, &[]).await?;
            Ok(ClockReading::received(asked, time))
        })
        .await
    }
}
