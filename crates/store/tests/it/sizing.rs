//! Measures the storage, WAL and time that a fleet costs PostgreSQL: the numbers of
//! docs/sizing.md.

use std::time::Instant;

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
/// totals never. Constant values would compress too well, random ones too badly.
fn of_machine(seq: i64) -> SampleRow {
    let chance = |most: i64| rand::random_range(0..most);
    let hundredths = |least: i64, most: i64| (least + chance(most)) as f64 / 100.0;
    let mut sample = sample(seq, after(hours_ago(3), seq * 30_000));
    sample.cpu_percent = 4.0 + chance(240) as f64 / 12.0;
    sample.load = [(20, 100), (30, 50), (40, 25)].map(|(least, most)| hundredths(least, most));
    sample.memory_used_bytes += chance(5_000) * 4096;
    sample.process_count += chance(8);
    sample.network_rx_bytes = seq * 90_000 + chance(80_000);
    sample.network_tx_bytes = seq * 40_000 + chance(30_000);
    for (number, disk) in (0..).zip(&mut sample.disks) {
        disk.used_bytes += seq * 8192 * number + chance(20) * 4096;
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
        let range = |agent: &TestAgent| agent.range(&[of_machine(seq)], &[]);
        let ranges: Vec<Range> = agents.iter().map(range).collect();
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
