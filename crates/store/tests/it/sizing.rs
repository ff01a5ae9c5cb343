//! What a fleet costs PostgreSQL, measured: the figures of docs/sizing.md.

use std::time::Instant;

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions};
use svc_store::{Range, Store};

use crate::support::{batch, open, options, text};
use crate::telling::{DAY, Teller, after, hours_ago, sample, teller};

const HOSTS: usize = 1_000;
/// Two hours of samples, one every 30 seconds.
const ROUNDS: i64 = 240;

async fn number(store: &Store, sql: &str) -> Result<f64> {
    Ok(text(store, &format!("SELECT ({sql})::text"))
        .await?
        .parse()?)
}

/// Bytes of a table (its partitions included) and of its indexes, for each of its rows.
async fn bytes(store: &Store, table: &str) -> Result<(f64, f64, f64)> {
    let leaves = format!("SELECT relid FROM pg_partition_tree('{table}') WHERE isleaf");
    let all = format!("FROM ({leaves} UNION SELECT '{table}'::regclass) parts");
    let rows = number(store, &format!("SELECT count(*) FROM {table}")).await?;
    let heap = number(store, &format!("SELECT sum(pg_table_size(relid)) {all}")).await?;
    let index = number(store, &format!("SELECT sum(pg_indexes_size(relid)) {all}")).await?;
    Ok((rows, heap / rows, index / rows))
}

async fn wal(store: &Store) -> Result<f64> {
    number(store, "SELECT pg_current_wal_lsn() - '0/0'").await
}

/// A round of everybody's samples, as the consumer stores them.
async fn tell(store: &Store, tellers: &[Teller], seq: i64) -> Result<()> {
    let at = after(hours_ago(3), seq * 30_000);
    let told = |teller: &Teller| teller.range(&[sample(seq, at)], &[]);
    let ranges: Vec<Range> = tellers.iter().map(told).collect();
    store.samples_append(&ranges).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "measures for docs/sizing.md: run by make sizing"]
async fn what_a_thousand_agents_cost() -> Result<()> {
    let options_of_server = PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    };
    let server = Postgres::start(options_of_server).await?;
    let store = open(&server.url("postgres"), options(3))?;
    store.migrate().await?;
    store.samples_prepare(DAY).await?;
    let mut tellers = Vec::new();
    for _ in 0..HOSTS {
        tellers.push(teller(&store).await?);
    }
    batch(&store, "CHECKPOINT").await?;
    let (began, before) = (Instant::now(), wal(&store).await?);
    for seq in 1..=ROUNDS {
        tell(&store, &tellers, seq).await?;
    }
    let samples = HOSTS as f64 * ROUNDS as f64;
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "append, batches of {HOSTS}: {:.0} samples/s, {:.0} bytes of WAL a sample",
        samples / took,
        written / samples
    );

    let (began, before) = (Instant::now(), wal(&store).await?);
    while store.rollups_gather().await?.more {}
    let mut hours = 0.0;
    loop {
        let step = store.rollups_compute().await?;
        hours += step.taken as f64;
        if !step.more {
            break;
        }
    }
    let (took, written) = (began.elapsed().as_secs_f64(), wal(&store).await? - before);
    println!(
        "rollup: {:.2} ms and {:.0} bytes of WAL for each host's hour ({hours} hours)",
        1e3 * took / hours,
        written / hours
    );

    for table in [
        "host_metrics",
        "host_metrics_hourly",
        "hosts",
        "agent_state",
        "agents",
    ] {
        let (rows, heap, index) = bytes(&store, table).await?;
        println!("{table}: {rows} rows of {heap:.0} bytes, {index:.0} in indexes");
    }
    Ok(())
}
