//! One hour of a large fleet: how long its compaction takes, how much memory, and how often its pages are read.
//!
//! The samples are written by SQL, in the order of time, as a fleet sends them. So the rows of a host are on as many pages as it
//! has samples, and with a fleet that is large enough the hour does not fit into the shared buffers.

use std::time::Duration;

use anyhow::Context;
use svc_harness::SampleWriter;
use tokio::time::Instant;

use super::{
    compaction::{DISKS, INTERVAL, SAMPLES_PER_HOUR, finish, last_full_hour},
    costs::stop_instances,
    sizes::Scale,
};
use crate::{
    figures::{Figures, Table},
    fleet::note,
    lab::{Lab, Settings},
};

const HOSTS: u32 = 100_000;
const COLUMNS: [&str; 9] = [
    "samples",
    "seconds",
    "PostgreSQL µs a sample",
    "service µs",
    "PostgreSQL MiB besides shared memory",
    "service MiB",
    "pages of the hour",
    "pages read",
    "temporary files MiB",
];

const FLEET: &str = "
    INSERT INTO hosts (hostname) SELECT 'host-' || n FROM generate_series(1, HOSTS) n;
    INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM hosts;
    INSERT INTO agent_state (agent_id) SELECT id FROM agents ON CONFLICT DO NOTHING;
    INSERT INTO agent_numbers (agent_id) SELECT id FROM agents";
/// One sample of each host, after a first one of one host that the service's own code stored: they have its list of parts.
const SAMPLES: &str = "
    INSERT INTO samples_open (arrived_hour, sampled_at, seq, memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                              uptime_seconds, network_rx_bytes, network_tx_bytes, host_no, agent_no, process_count, cpu_percent,
                              load_1m, load_5m, load_15m, shape, parts)
    SELECT (SELECT sample_hour_take()), $1 + host_no % 30 * interval '1 second', $2 + 2, (3::bigint << 30) + 4096 * floor(5000 * random())::bigint,
           8::bigint << 30, 1 << 20, 2::bigint << 30, 86400 + 30 * $2, 90000::bigint * $2 + floor(80000 * random())::bigint,
           40000::bigint * $2 + floor(30000 * random())::bigint, host_no, agent_no, 240 + floor(8 * random())::integer,
           4 + round(240 * random()) / 12, round(100 * random()) / 50, 0.4, 0.5, first.shape,
           ARRAY[(120::bigint << 30) + 4096 * floor(20 * random())::bigint, 500::bigint << 30,
                 (120::bigint << 30) + 8192 * $2 + 4096 * floor(20 * random())::bigint, 500::bigint << 30]
      FROM agents JOIN agent_numbers ON agent_id = id JOIN host_vitals USING (host_id),
           (SELECT shape FROM host_vitals WHERE shape IS NOT NULL LIMIT 1) first";
const BLOCKS: &str =
    "SELECT sum(pg_relation_size(inhrelid))::bigint / current_setting('block_size')::int
                        FROM pg_inherits WHERE inhparent = 'samples_open'::regclass";
const READ: &str = "SELECT blks_read FROM pg_stat_database WHERE datname = current_database()";
const TEMPORARY: &str =
    "SELECT temp_bytes FROM pg_stat_database WHERE datname = current_database()";
const MIB: u64 = 1 << 20;

pub async fn run(scale: Scale) -> anyhow::Result<Figures> {
    let hosts = scale.agents(HOSTS);
    let mut lab = Lab::start(Settings {
        instances: 1,
        interval: INTERVAL,
        durable: true,
    })
    .await?;
    stop_instances(&mut lab).await?;
    let samples = fill(&lab, hosts).await?;
    let blocks = lab.number(BLOCKS).await?;
    lab.sql("CHECKPOINT").await?;
    let counted =
        async |lab: &Lab| anyhow::Ok((lab.number(READ).await?, lab.number(TEMPORARY).await?));
    let before = counted(&lab).await?;
    let finished = finish(&mut lab, samples).await?;
    let after = counted(&lab).await?;
    let found = lab.number("SELECT sum(samples) FROM sample_chunks").await?;
    anyhow::ensure!(
        found == samples,
        "{found} of {samples} samples were compacted"
    );
    // The pages of the hour's rows, and all pages that PostgreSQL did not find in its buffers.
    let figures = [
        samples as f64,
        finished.took.as_secs_f64(),
        finished.cost.postgres_us,
        finished.cost.service_us,
        (finished.private_kib / 1024) as f64,
        (lab.peak_memory()? / MIB) as f64,
        blocks as f64,
        (after.0 - before.0) as f64,
        ((after.1 - before.1) / MIB) as f64,
    ];
    let table = Table::new("compaction of an hour: hosts", &COLUMNS);
    Ok(Figures {
        tables: vec![table.row(hosts.to_string(), figures)],
        ..Figures::default()
    })
}

/// An hour of samples of so many hosts. Returns how many samples.
async fn fill(lab: &Lab, hosts: u32) -> anyhow::Result<u64> {
    let began = Instant::now();
    lab.sql(&FLEET.replace("HOSTS", &hosts.to_string())).await?;
    let mut writer = SampleWriter::open(&lab.database_url(), DISKS).await?;
    writer.partitions_create(Duration::from_hours(48)).await?;
    let hour = last_full_hour()?;
    writer.append(0..1, &[hour]).await?;
    for number in 0..SAMPLES_PER_HOUR {
        let at = format!("'{hour}'::timestamptz + {number} * interval '30 seconds'");
        let sql = SAMPLES
            .replace("$1", &at)
            .replace("$2", &number.to_string());
        lab.sql(&sql)
            .await
            .with_context(|| format!("sample {number}"))?;
    }
    lab.sql("ANALYZE").await?;
    let samples = u64::from(hosts) * SAMPLES_PER_HOUR.unsigned_abs() + 1;
    note(&format!(
        "{samples} samples were written in {:.0?}",
        began.elapsed()
    ));
    Ok(samples)
}
