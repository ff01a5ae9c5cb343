//! What a sample costs after it is stored: bytes on disk and in the WAL, compaction, and reading it back.
//!
//! All hosts get an hour of samples, one every 30 seconds, in the order in which a fleet would send them; some
//! of them also get the 30 days before. Then the hour closes, and an instance compacts history and
//! rolls it up.

use std::time::Duration;

use jiff::Timestamp;
use svc_harness::SampleWriter;

use super::{
    compaction::{Cost, DISKS, INTERVAL, SAMPLES_PER_HOUR, finish, last_full_hour, times},
    costs::stop_instances,
    load, pages,
    sizes::{Scale, ramp},
};
use crate::{
    figures::{Figures, Goal, Table},
    fleet::note,
    lab::{Lab, Settings},
    plan::Plan,
};

/// Hosts with an hour of history, and how many of them have a month.
const HOSTS: u32 = 2_000;
const LONG_HOSTS: usize = 5;
const DAYS: i64 = 30;
const BATCH: usize = 1_000;
const RETENTION: Duration = Duration::from_hours(31 * 24);
/// Samples per second of 100,000 hosts at the default interval.
const LARGE_FLEET: f64 = 100_000.0 / 30.0;

/// All tables except those with one row for each host or agent: they grow with the fleet, not with its samples.
const BYTES: &str = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                      WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                        AND relname NOT IN ('hosts', 'host_vitals', 'agents', 'agent_numbers', 'agent_state')";

pub async fn run(scale: Scale) -> anyhow::Result<Figures> {
    let hosts = scale.agents(HOSTS);
    let usual = Recorded::new(hosts, |_| {}).await?;
    let read = &usual.writer.hosts()[..LONG_HOSTS.min(hosts as usize)];
    let (pages, mut goals) = pages::read(&usual.lab, read, usual.hour).await?;
    drop(usual.lab); // Its servers must not run beside the next ones.
    note("the same with all optional vitals");
    let all_vitals = Recorded::new(hosts, SampleWriter::write_all_vitals).await?;
    let names = format!("each of {} samples of {hosts} hosts", usual.samples);
    let columns = ["PostgreSQL µs", "service µs", "WAL bytes", "bytes on disk"];
    let table = Table::new(names, &columns)
        .row("stored, in batches of 1,000", usual.stored.figures())
        .row("compacted and rolled up", usual.compacted.figures())
        .row("stored, all optional vitals", all_vitals.stored.figures())
        .row("compacted and rolled up", all_vitals.compacted.figures());
    let (compacted, all) = (&usual.compacted, &all_vitals.compacted);
    let cores = (compacted.postgres_us + compacted.service_us) * LARGE_FLEET / 1e6;
    goals.extend([
        Goal::at_most("bytes on disk per sample", compacted.disk_bytes, 60.0),
        Goal::at_most("with all optional vitals", all.disk_bytes, 90.0),
        Goal::at_most("compaction for 100,000 hosts, cores", cores, 0.05),
    ]);
    Ok(Figures {
        tables: vec![table, pages],
        goals,
        ..Figures::default()
    })
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
    async fn new(hosts: u32, set_up: impl Fn(&mut SampleWriter)) -> anyhow::Result<Recorded> {
        let mut lab = lab(hosts).await?;
        let before = lab.number(BYTES).await?;
        let on_disk = async |lab: &Lab, samples: u64| -> anyhow::Result<f64> {
            Ok(lab.number(BYTES).await?.saturating_sub(before) as f64 / samples as f64)
        };
        let mut writer = SampleWriter::open(&lab.database_url(), DISKS).await?;
        set_up(&mut writer);
        writer.partitions_create(RETENTION).await?;
        let hour = last_full_hour()?;
        let long = LONG_HOSTS.min(hosts as usize);
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
async fn lab(agents: u32) -> anyhow::Result<Lab> {
    let mut lab = Lab::start(Settings {
        instances: 0,
        interval: INTERVAL,
        durable: true,
    })
    .await?;
    lab.set("INGEST_METRICS_RETENTION", "31d");
    lab.add_instance().await?;
    let plan = Plan {
        ramp: ramp(agents),
        ..lab.plan(agents).await?
    };
    load::enrol(plan).await?;
    stop_instances(&mut lab).await?;
    Ok(lab)
}

/// Stores an hour of all hosts. The figures include the full pages that follow a checkpoint.
async fn store_hour(
    lab: &Lab,
    writer: &mut SampleWriter,
    hour: Timestamp,
) -> anyhow::Result<(Cost, u64)> {
    lab.sql("CHECKPOINT").await?;
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
