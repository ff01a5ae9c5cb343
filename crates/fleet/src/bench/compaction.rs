//! What a sample costs when its hour is compacted and rolled up.

use std::{ops::Range, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

use crate::lab::{Lab, ResourceUsage};

/// As in the requirement on bytes per sample.
pub const DISKS: usize = 2;
pub const INTERVAL: Duration = Duration::from_secs(30);
pub const SAMPLES_PER_HOUR: i64 = 120;
/// For compaction to finish after the hour has closed.
const TIMEOUT: Duration = Duration::from_mins(30);
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Over which the CPU time of an instance without work is measured.
const IDLE_TIME: Duration = Duration::from_secs(15);

/// Whether closed hours are not compacted yet.
const UNFINISHED: &str = "SELECT count(*) FROM sample_hours
                           WHERE finished_at IS NULL AND arrived_hour < date_trunc('hour', samples_now(), 'UTC')";
/// Closed hours whose rows are still there, beside the chunks: the pass after the one that finished them drops them.
const UNDROPPED: &str = "SELECT count(*) FROM sample_hours
                          WHERE arrived_hour < date_trunc('hour', samples_now(), 'UTC')
                            AND to_regclass('samples_open_' || to_char(arrived_hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')) IS NOT NULL";
/// The clock that decides which hour a sample arrives in; it is a function so that this stage can advance it.
const ADVANCE_CLOCK: &str =
    "CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE
                             AS $$ SELECT now() + interval '1 hour' $$";

/// Per sample. The bytes on disk include indexes, and are what is there afterwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub service_us: f64,
    pub postgres_us: f64,
    pub wal_bytes: f64,
    pub disk_bytes: f64,
}

/// What the compaction of all closed hours took.
pub struct Finished {
    pub cost: Cost,
    pub took: Duration,
    /// The most memory that PostgreSQL's processes had for themselves.
    pub private_kib: u64,
}

/// Closes the hour, and measures an instance from its start, when it looks for closed hours, until it has compacted and
/// rolled up everything. What an instance costs without such work in the same time is subtracted. Then the rows of the hours are
/// dropped, as by every pass after the one that finished them.
pub async fn finish(lab: &mut Lab, samples: u64) -> anyhow::Result<Finished> {
    lab.sql(ADVANCE_CLOCK).await?;
    let (before, began, mut private_kib) = (lab.usage().await?, Instant::now(), 0);
    lab.add_instance().await?;
    while lab.number(UNFINISHED).await? > 0 {
        anyhow::ensure!(began.elapsed() < TIMEOUT, "history is not compacted");
        private_kib = private_kib.max(lab.private_memory_of_postgres()?);
        sleep(POLL_INTERVAL).await;
    }
    let (after, took) = (lab.usage().await?, began.elapsed());
    sleep(IDLE_TIME).await;
    let idle = Cost::between(&after, &lab.usage().await?, samples);
    let times = took.as_secs_f64() / IDLE_TIME.as_secs_f64();
    let busy = Cost::between(&before, &after, samples);
    // An instance begins with a pass.
    lab.add_instance().await?;
    while lab.number(UNDROPPED).await? > 0 {
        anyhow::ensure!(began.elapsed() < TIMEOUT, "compacted hours are not dropped");
        sleep(POLL_INTERVAL).await;
    }
    let cost = Cost {
        service_us: (busy.service_us - idle.service_us * times).max(0.0),
        postgres_us: (busy.postgres_us - idle.postgres_us * times).max(0.0),
        ..busy
    };
    Ok(Finished {
        cost,
        took,
        private_kib,
    })
}

impl Cost {
    pub fn figures(&self) -> Vec<f64> {
        vec![
            self.postgres_us,
            self.service_us,
            self.wal_bytes,
            self.disk_bytes,
        ]
    }

    pub fn between(before: &ResourceUsage, after: &ResourceUsage, samples: u64) -> Cost {
        let each = |before: u64, after: u64| (after - before) as f64 / samples as f64;
        Cost {
            service_us: each(before.services.cpu_us, after.services.cpu_us),
            postgres_us: each(before.postgres.cpu_us, after.postgres.cpu_us),
            wal_bytes: each(before.wal_bytes, after.wal_bytes),
            disk_bytes: 0.0,
        }
    }
}

/// The beginning of the hour before this one.
pub fn last_full_hour() -> anyhow::Result<Timestamp> {
    let now = Timestamp::now().as_second();
    Ok(Timestamp::from_second(now - now.rem_euclid(3600) - 3600)?)
}

/// The times of samples, counted in intervals from the beginning of an hour.
pub fn times(hour: Timestamp, numbers: Range<i64>) -> anyhow::Result<Vec<Timestamp>> {
    let at = |number: i64| hour.checked_add(SignedDuration::from_secs(30 * number));
    Ok(numbers.map(at).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_a_sample_every_thirty_seconds() {
        let hour = Timestamp::from_second(1_800_000_000).unwrap();
        let full = times(hour, 0..SAMPLES_PER_HOUR).unwrap();
        assert_eq!((full[0], full[119].as_second()), (hour, 1_800_003_570));
    }
}
