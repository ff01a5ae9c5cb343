//! Measures the storage, WAL and time that a fleet costs PostgreSQL: the numbers of
//! docs/sizing.md.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Instant,
};

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::{Range, SampleRow};

use crate::{fixtures::*, support::*};

const HOSTS: usize = 1_000;
/// Two hours of samples, one every 30 seconds.
const ROUNDS: i64 = 240;

async fn number(store: &TestStore, sql: &str) -> Result<f64> {
    Ok(store.sql(sql).await?.parse()?)
}

/// Prints the rows of a table with its partitions, and the bytes of heap and of indexes per row.
async fn print_size(store: &TestStore, table: &str) -> Result<()> {
    let leaves = format!("SELECT relid FROM pg_partition_tree('{table}') WHERE isleaf");
    let all = format!("FROM ({leaves} UNION SELECT '{table}'::regclass) parts");
    let rows = number(store, &format!("SELECT count(*) FROM {table}")).await?;
    let heap = number(store, &format!("SELECT sum(pg_table_size(relid)) {all}")).await?;
    let index = number(store, &format!("SELECT sum(pg_indexes_size(relid)) {all}")).await?;
    let (heap, index) = (heap / rows, index / rows);
    println!("{table}: {rows} rows of {heap:.0} bytes, {index:.0} in indexes");
    Ok(())
}

async fn wal(store: &TestStore) -> Result<f64> {
    number(store, "SELECT pg_current_wal_lsn() - '0/0'").await
}

/// Values that change from sample to sample as a machine's do: some by chance, some slowly, counters steadily,
/// totals never; the same in every run. Constant values would compress too well, random ones too badly.
fn of_machine(host: usize, seq: i64) -> SampleRow {
    let chance = |what: u8, every: i64, most: u64| {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        (hasher.hash_one((host, what, seq / every)) % most) as i64
    };
    let load = |(what, every, least, most)| (least + chance(what, every, most)) as f64 / 100.0;
    let mut sample = sample(seq, after(hours_ago(3), seq * 30_000));
    sample.cpu_percent = 4.0 + chance(1, 1, 240) as f64 / 12.0;
    sample.load = [(2, 1, 20, 100), (3, 5, 30, 50), (4, 15, 40, 25)].map(load);
    sample.memory_used_bytes += chance(5, 1, 5_000) * 4096;
    sample.process_count += chance(6, 2, 8);
    sample.network_rx_bytes = seq * 90_000 + chance(7, 1, 80_000);
    sample.network_tx_bytes = seq * 40_000 + chance(8, 1, 30_000);
    for (disk, number) in sample.disks.iter_mut().zip(0..2_u8) {
        let written = seq * 8192 * i64::from(number);
        disk.used_bytes += written + chance(10 + number, 1, 20) * 4096;
    }
    sample
}

#[tokio::test]
#[ignore = "measures for docs/sizing.md: run by make sizing"]
async fn measure_the_cost_of_a_thousand_agents() -> Result<()> {
    let durable = PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    };
    let server = Postgres::start(durable).await?;
    let store = TestStore::open(&server.url("postgres"), 3)?;
    store.migrate().await?;
    store.partitions_create(DAY).await?;
    let agents = TestAgent::many(&store, HOSTS).await?;
    store.sql("CHECKPOINT").await?;
    let (began, before) = (Instant::now(), wal(&store).await?);
    for seq in 1..=ROUNDS {
        let range = |(host, agent): (usize, &TestAgent)| agent.range(&[of_machine(host, seq)], &[]);
        let ranges: Vec<Range> = agents.iter().enumerate().map(range).collect();
        store.samples_append(&ranges).await?;
    }
    let samples = HOSTS as f64 * ROUNDS as f64;
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "append, batches of {HOSTS}: {:.0} samples/s, {:.0} bytes of WAL a sample",
        samples / took,
        written / samples
    );
    print_size(&store, "samples_open").await?;

    let (began, before) = (Instant::now(), wal(&store).await?);
    assert_eq!(compact(&store).await? as f64, samples);
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "compaction and rollup: {:.1} µs and {:.0} bytes of WAL for each sample",
        1e6 * took / samples,
        written / samples
    );
    let tables = [
        "sample_chunks",
        "host_rollups",
        "hosts",
        "host_vitals",
        "agents",
        "agent_state",
    ];
    for table in tables {
        print_size(&store, table).await?;
    }
    Ok(())
}
