//! Measures the storage, WAL and time that a fleet costs PostgreSQL: the numbers of
//! docs/sizing.md.

use std::time::Instant;

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions};
use svc_testkit::SampleWriter;

use crate::{
    fixtures::{DAY, TestAgent, after, compact, hours_ago},
    support::TestStore,
};

const HOSTS: usize = 1_000;
const DISKS: usize = 2;
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
    TestAgent::many_at_once(&store, HOSTS).await?;
    let mut writer = SampleWriter::open(store.url(), DISKS).await?;
    store.sql("CHECKPOINT").await?;
    let (began, before) = (Instant::now(), wal(&store).await?);
    for round in 0..ROUNDS {
        let at = after(hours_ago(3), round * 30_000);
        writer.append(0..HOSTS, &[at]).await?;
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
