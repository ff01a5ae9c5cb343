//! Retention: partitions are made ahead, and dropped when they are compacted or too old (`retention/drop`); rows are removed in
//! batches (`retention/prune`).

mod drop;
mod prune;

use std::time::Duration;

use jiff::civil::Date;

use crate::{prelude::*, statements::locks};

/// Rollups go month by month, so the first of a month stays this much longer.
const ROLLUPS_PARTITION: Duration = Duration::from_hours(31 * 24);

/// Now, or the time of the newest sample where the server's clock is far ahead of it: a wrong clock makes nothing old.
const NEWEST: &str = "least(now(), (SELECT max(vitals_at) FROM host_vitals))";

/// Whether a day within the retention, or one of the next two, has no partition.
const MISSING: &str = "-- partitions_create
    SELECT EXISTS (
        SELECT FROM generate_series(date_trunc('day', now() - make_interval(secs => $1), 'UTC') - interval '1 day',
                                    now() + interval '2 days', interval '1 day') due
         WHERE NOT EXISTS (SELECT FROM sample_days d WHERE d.day = (due AT TIME ZONE 'UTC')::date AND NOT d.detaching))";

const CREATE: &str = "-- partitions_create
    SELECT day, problem FROM metrics_partitions_ensure(make_interval(secs => $1))";

record! {
    #[derive(Debug)]
    struct MissingDay {
        day: Date,
        problem: Option<String>,
    }
}

impl Store {
    /// Creates the daily partitions for samples within the retention and the next days, and the monthly partitions for their
    /// rollups. Returns how many days it made. A day that fails is logged, and does not stop the others.
    pub async fn partitions_create(&self, retention: Duration) -> Result<usize> {
        let params = params![retention.as_secs_f64()];
        let days = self
            .run("partitions_create", Maintenance, async |tx| {
                if !tx.query_value::<bool>(MISSING, &params).await? {
                    return Ok(Vec::new());
                }
                tx.lock(locks::SCHEMA).await?;
                tx.query_all::<MissingDay>(CREATE, &params).await
            })
            .await?;
        let (made, failed): (Vec<_>, Vec<_>) =
            days.into_iter().partition(|day| day.problem.is_none());
        for MissingDay { day, problem } in &failed {
            let problem = problem.as_deref().unwrap_or_default();
            tracing::warn!(%day, problem, "a day of samples has no partition: samples of it cannot be compacted");
        }
        Ok(made.len())
    }
}
