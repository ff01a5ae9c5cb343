//! What a sample costs after it is stored: bytes on disk and in the WAL, compaction, and reading it back.
//!
//! All hosts get an hour of samples, one every 30 seconds, in the order in which a fleet would send them; some
//! of them also get the 30 days before. Then the hour closes, and an instance compacts history and
//! rolls it up.

mod hour;
mod pages;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use svc_testkit::SampleWriter;
use tokio::time::{Instant, sleep};

use super::{load, note, sizes::Sizes};
use crate::{
    lab::{Lab, ResourceUsage, Settings},
    plan::Plan,
};
pub use hour::{Hour, run as run_hour};
pub use pages::Page;

/// As in the requirement on bytes per sample.
const DISKS: usize = 2;
const INTERVAL: Duration = Duration::from_secs(30);
const SAMPLES_PER_HOUR: i64 = 120;
const DAYS: i64 = 30;
const BATCH: usize = 1_000;
const RETENTION: Duration = Duration::from_hours(31 * 24);
/// For compaction to finish after the hour has closed.
const TIMEOUT: Duration = Duration::from_mins(30);
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Over which the CPU time of an instance without work is measured.
const IDLE_TIME: Duration = Duration::from_secs(15);

/// All tables except those with one row for each host or agent: they grow with the fleet, not with its samples.
const BYTES: &str = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                      WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                        AND relname NOT IN ('hosts', 'host_vitals', 'agents', 'agent_numbers', 'agent_state')";
/// Whether closed hours are not compacted yet.
const UNFINISHED: &str = "SELECT count(*) FROM sample_hours
                           WHERE finished_at IS NULL AND arrived_hour < date_trunc('hour', samples_now(), 'UTC')";
/// The clock that decides which hour a sample arrives in; it is a function so that this stage can advance it.
const ADVANCE_CLOCK: &str =
    "CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE
                             AS $$ SELECT now() + interval '1 hour' $$";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    pub hosts: u32,
    pub samples: u64,
    /// The cost of storing a sample, in batches of 1,000 hosts.
    pub stored: Cost,
    /// The cost of compacting and rolling up a sample.
    pub compacted: Cost,
    #[serde(default)]
    pub all_vitals: Option<AllVitals>,
    pub pages: Vec<Page>,
}

/// The same if each sample contains all optional vitals of a machine with one network interface and one block device.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct AllVitals {
    pub stored: Cost,
    pub compacted: Cost,
}

/// Per sample. The bytes on disk include indexes, and are what is there afterwards.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    pub service_us: f64,
    pub postgres_us: f64,
    pub wal_bytes: f64,
    pub disk_bytes: f64,
}

pub async fn run(sizes: &Sizes) -> anyhow::Result<History> {
    let usual = Recorded::new(sizes, |_| {}).await?;
    let hosts = &usual.writer.hosts()[..sizes.history_long as usize];
    let pages = pages::read(&usual.lab, hosts, usual.hour).await?;
    drop(usual.lab); // Its servers must not run beside the next ones.
    note("the same with all optional vitals");
    let all_vitals = Recorded::new(sizes, SampleWriter::write_all_vitals).await?;
    let history = History {
        hosts: sizes.history_hosts,
        samples: usual.samples,
        stored: usual.stored,
        compacted: usual.compacted,
        all_vitals: Some(AllVitals {
            stored: all_vitals.stored,
            compacted: all_vitals.compacted,
        }),
        pages,
    };
    note(&format!("{history:?}"));
    Ok(history)
}

/// A history that was stored, compacted and rolled up.
struct Recorded {
    lab: Lab,
    writer: SampleWriter,
    /// The last hour of it.
    hour: Timestamp,
    samples: u64,
    stored: Cost,
    compacted: Cost,
}

impl Recorded {
    async fn new(sizes: &Sizes, set_up: impl Fn(&mut SampleWriter)) -> anyhow::Result<Recorded> {
        let mut lab = lab(sizes).await?;
        let before = lab.number(BYTES).await?;
        let on_disk = async |lab: &Lab, samples: u64| -> anyhow::Result<f64> {
            Ok(lab.number(BYTES).await?.saturating_sub(before) as f64 / samples as f64)
        };
        let mut writer = SampleWriter::open(&lab.database_url(), DISKS).await?;
        set_up(&mut writer);
        writer.partitions_create(RETENTION).await?;
        let hour = last_full_hour()?;
        let long = sizes.history_long as usize;
        let month = times(hour, -DAYS * 24 * SAMPLES_PER_HOUR..0)?;
        for times in month.chunks(BATCH / long) {
            writer.append(0..long, times).await?;
        }
        let samples = (month.len() * long) as u64;
        note(&format!("{samples} samples of {DAYS} days are stored"));
        let (mut stored, fresh) = store_hour(&lab, &mut writer, hour).await?;
        let samples = samples + fresh;
        stored.disk_bytes = on_disk(&lab, samples).await?;
        let mut compacted = finish(&mut lab, samples).await?.cost;
        compacted.disk_bytes = on_disk(&lab, samples).await?;
        Ok(Recorded {
            lab,
            writer,
            hour,
            samples,
            stored,
            compacted,
        })
    }
}

/// A lab with registered agents and no instance.
async fn lab(sizes: &Sizes) -> anyhow::Result<Lab> {
    let mut lab = Lab::start(Settings {
        instances: 0,
        interval: INTERVAL,
        durable: true,
    })
    .await?;
    lab.set("INGEST_METRICS_RETENTION", "31d");
    lab.add_instance().await?;
    let agents = sizes.history_hosts;
    let plan = Plan {
        ramp: sizes.ramp(agents),
        ..lab.plan(agents).await?
    };
    load::enrol(plan).await?;
    for instance in lab.instances.drain(..) {
        instance.stop().await?;
    }
    Ok(lab)
}

/// Stores an hour of all hosts. The figures include the full pages that follow a checkpoint.
async fn store_hour(
    lab: &Lab,
    writer: &mut SampleWriter,
    hour: Timestamp,
) -> anyhow::Result<(Cost, u64)> {
    svc_sandbox::query(&lab.database_url(), "CHECKPOINT").await?;
    let before = lab.usage().await?;
    let agents = writer.agents();
    for at in times(hour, 0..SAMPLES_PER_HOUR)? {
        for first in (0..agents).step_by(BATCH) {
            writer
                .append(first..agents.min(first + BATCH), &[at])
                .await?;
        }
    }
    let samples = agents as u64 * SAMPLES_PER_HOUR.unsigned_abs();
    Ok((
        Cost::between(&before, &lab.usage().await?, samples),
        samples,
    ))
}

/// What the compaction of all closed hours took.
struct Finished {
    cost: Cost,
    took: Duration,
    /// The most memory that PostgreSQL's processes had for themselves.
    private_kib: u64,
}

/// Closes the hour, and measures an instance from its start, when it looks for closed hours, until it has compacted and
/// rolled up everything. What an instance costs without such work in the same time is subtracted.
async fn finish(lab: &mut Lab, samples: u64) -> anyhow::Result<Finished> {
    svc_sandbox::query(&lab.database_url(), ADVANCE_CLOCK).await?;
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
    fn between(before: &ResourceUsage, after: &ResourceUsage, samples: u64) -> Cost {
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
fn last_full_hour() -> anyhow::Result<Timestamp> {
    let now = Timestamp::now().as_second();
    Ok(Timestamp::from_second(now - now.rem_euclid(3600) - 3600)?)
}

/// The times of samples, counted in intervals from the beginning of an hour.
fn times(hour: Timestamp, numbers: std::ops::Range<i64>) -> anyhow::Result<Vec<Timestamp>> {
    let at = |number: i64| hour.checked_add(SignedDuration::from_secs(30 * number));
    Ok(numbers.map(at).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_a_sample_every_thirty_seconds_and_the_month_ends_where_it_begins() {
        let hour = Timestamp::from_second(1_800_000_000).unwrap();
        let full = times(hour, 0..SAMPLES_PER_HOUR).unwrap();
        let month = times(hour, -DAYS * 24 * SAMPLES_PER_HOUR..0).unwrap();
        assert_eq!(month.len(), 86_400);
        assert_eq!((full[0], full[119].as_second()), (hour, 1_800_003_570));
        assert_eq!(month[86_399].as_second(), 1_800_000_000 - 30);
    }
}
