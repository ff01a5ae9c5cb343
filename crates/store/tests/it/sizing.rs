//! Measures the storage, WAL and time that a fleet costs PostgreSQL: the numbers of
//! docs/sizing.md.

use std::time::Instant;

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::Range;

use crate::{
    fixtures::{DAY, TestAgent, after, compact, hours_ago, sample},
    support::TestStore,
};

const HOSTS: usize = 1_000;
/// Two hours of samples, one every 30 seconds.
const ROUNDS: i64 = 240;

async fn number(store: &TestStore, sql: &str) -> Result<f64> {
    Ok(store.sql(sql).await?.parse()?)
}

/// The rows of a table with its partitions, and the bytes of heap and of indexes per row.
async fn bytes(store: &TestStore, table: &str) -> Result<(f64, f64, f64)> {
    let leaves = format!("SELECT relid FROM pg_partition_tree('{table}') WHERE isleaf");
    let all = format!("FROM ({leaves} UNION SELECT '{table}'::regclass) parts");
    let rows = number(store, &format!("SELECT count(*) FROM {table}")).await?;
    let heap = number(store, &format!("SELECT sum(pg_table_size(relid)) {all}")).await?;
    let index = number(store, &format!("SELECT sum(pg_indexes_size(relid)) {all}")).await?;
    Ok((rows, heap / rows, index / rows))
}

async fn wal(store: &TestStore) -> Result<f64> {
    number(store, "SELECT pg_current_wal_lsn() - '0/0'").await
}

/// Stores one sample of every agent, as the consumer does.
async fn append_round(store: &TestStore, agents: &[TestAgent], seq: i64) -> Result<()> {
    let at = after(hours_ago(3), seq * 30_000);
    let range = |agent: &TestAgent| agent.range(&[sample(seq, at)], &[]);
    let ranges: Vec<Range> = agents.iter().map(range).collect();
    store.samples_append(&ranges).await?;
    Ok(())
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
        append_round(&store, &agents, seq).await?;
    }
    let samples = HOSTS as f64 * ROUNDS as f64;
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "append, batches of {HOSTS}: {:.0} samples/s, {:.0} bytes of WAL a sample",
        samples / took,
        written / samples
    );

    let (began, before) = (Instant::now(), wal(&store).await?);
    assert_eq!(compact(&store).await? as f64, samples);
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "compaction and rollup: {:.1} µs and {:.0} bytes of WAL for each sample",
        1e6 * took / samples,
        written / samples
    );
    for table in ["sample_chunks", "host_rollups"] {
        let (rows, heap, index) = bytes(&store, table).await?;
        let of_sample = (heap + index) * rows / samples;
        println!("{table}: {of_sample:.1} bytes a sample with indexes");
    }

    let tables = [
        "sample_chunks",
        "host_rollups",
        "hosts",
        "agent_state",
        "agents",
    ];
    for table in tables {
        let (rows, heap, index) = bytes(&store, table).await?;
        println!("{table}: {rows} rows of {heap:.0} bytes, {index:.0} in indexes");
    }
    Ok(())
}
