//! The bare SQL loop: what PostgreSQL itself needs for a heartbeat, without a service in front.
//!
//! The statements do what `samples_append` in `crates/store` does, unnamed and typed as there, on the
//! same tables and rows, at a given batch size and pace; but history goes in by unnest instead of
//! COPY, and no changes are noted for the rollups. They are kept by hand: a crate that measures the
//! store from outside cannot call it. It is the one place here that speaks to PostgreSQL by itself.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::lab::Lab;

const LOCK: &str =
    "SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
     WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";
const APPEND: &str = "INSERT INTO host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
           memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds,
           process_count, network_rx_bytes, network_tx_bytes, disks)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::bigint[], $5::float8[], $6::float8[],
           $7::float8[], $8::float8[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
           $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::jsonb[])";
const MOVE: &str = "UPDATE agent_state s
       SET acked_seq = moved.acked_seq, stored_count = s.stored_count + moved.stored
      FROM (SELECT agent_id, max(last_seq) AS acked_seq, sum(stored)::bigint AS stored
              FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS given(agent_id, last_seq, stored)
             GROUP BY agent_id) moved
     WHERE s.agent_id = moved.agent_id";
const VITALS: &str = "UPDATE hosts h
       SET vitals_at = v.sampled_at, cpu_percent = v.cpu, load_1m = v.load, memory_used_bytes = v.memory,
           memory_total_bytes = v.total, swap_used_bytes = v.swap, uptime_seconds = v.uptime,
           process_count = v.processes, disks = v.disks
      FROM unnest($1::uuid[], $2::timestamptz[], $3::float8[], $4::float8[], $5::bigint[], $6::bigint[],
                  $7::bigint[], $8::bigint[], $9::bigint[], $10::jsonb[])
           AS v(host_id, sampled_at, cpu, load, memory, total, swap, uptime, processes, disks)
     WHERE h.id = v.host_id AND (h.vitals_at IS NULL OR h.vitals_at <= v.sampled_at)";

/// What the loop cost PostgreSQL, a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SqlCost {
    pub batch: u64,
    pub per_second: f64,
    pub postgres_us: f64,
    pub wal_bytes: f64,
}

/// An agent, its host and its next number.
struct Row {
    agent: Uuid,
    host: Uuid,
    next: i64,
}

/// Runs for `time` on a lab whose instances have stopped.
pub async fn run(lab: &Lab, batch: u64, rate: f64, time: Duration) -> anyhow::Result<SqlCost> {
    let (client, connection) = tokio_postgres::connect(&lab.database_url(), NoTls).await?;
    let connection = tokio::spawn(connection);
    let mut rows = rows(&client).await?;
    let batch = batch.clamp(1, rows.len() as u64);
    let (before, began) = (lab.spent().await?, Instant::now());
    let mut done = 0;
    while began.elapsed() < time {
        let start = done as usize % rows.len();
        let end = (start + batch as usize).min(rows.len());
        append(&client, &mut rows[start..end]).await?;
        done += (end - start) as u64;
        sleep_until(began + Duration::from_secs_f64(done as f64 / rate)).await;
    }
    let (after, seconds) = (lab.spent().await?, began.elapsed().as_secs_f64());
    drop(client);
    connection.abort();
    let each = |amount: u64| amount as f64 / done.max(1) as f64;
    Ok(SqlCost {
        batch,
        per_second: done as f64 / seconds,
        postgres_us: each(after.postgres.cpu_us - before.postgres.cpu_us),
        wal_bytes: each(after.wal_bytes - before.wal_bytes),
    })
}

/// In the order of their keys, as every writer takes them.
async fn rows(client: &Client) -> anyhow::Result<Vec<Row>> {
    let sql = "SELECT a.id, a.host_id, s.acked_seq + 1 FROM agents a JOIN agent_state s ON s.agent_id = a.id
                WHERE a.status = 'active' ORDER BY a.id";
    let rows = client.query(sql, &[]).await?;
    let rows = rows.iter().map(|row| Row {
        agent: row.get(0),
        host: row.get(1),
        next: row.get(2),
    });
    let rows: Vec<Row> = rows.collect();
    anyhow::ensure!(!rows.is_empty(), "no agent to write for");
    Ok(rows)
}

async fn append(client: &Client, rows: &mut [Row]) -> anyhow::Result<()> {
    let agents: Vec<Uuid> = rows.iter().map(|row| row.agent).collect();
    let hosts: Vec<Uuid> = rows.iter().map(|row| row.host).collect();
    let numbers: Vec<i64> = rows.iter().map(|row| row.next).collect();
    let times = vec![Timestamp::now(); rows.len()];
    let (floats, integers) = (vec![12.5_f64; rows.len()], vec![3_i64 << 30; rows.len()]);
    let ones = vec![1_i64; rows.len()];
    let disks = vec![disks(); rows.len()];
    client.batch_execute("BEGIN").await?;
    query(client, LOCK, &[(&agents, Type::UUID_ARRAY)]).await?;
    let mut append: Vec<Param<'_>> = vec![
        (&hosts, Type::UUID_ARRAY),
        (&agents, Type::UUID_ARRAY),
        (&times, Type::TIMESTAMPTZ_ARRAY),
        (&numbers, Type::INT8_ARRAY),
    ];
    append.extend((0..4).map(|_| (&floats as Value<'_>, Type::FLOAT8_ARRAY)));
    append.extend((0..8).map(|_| (&integers as Value<'_>, Type::INT8_ARRAY)));
    append.push((&disks, Type::JSONB_ARRAY));
    query(client, APPEND, &append).await?;
    let moved: [Param<'_>; 3] = [
        (&agents, Type::UUID_ARRAY),
        (&numbers, Type::INT8_ARRAY),
        (&ones, Type::INT8_ARRAY),
    ];
    query(client, MOVE, &moved).await?;
    let mut vitals: Vec<Param<'_>> = vec![
        (&hosts, Type::UUID_ARRAY),
        (&times, Type::TIMESTAMPTZ_ARRAY),
    ];
    vitals.extend((0..2).map(|_| (&floats as Value<'_>, Type::FLOAT8_ARRAY)));
    vitals.extend((0..5).map(|_| (&integers as Value<'_>, Type::INT8_ARRAY)));
    vitals.push((&disks, Type::JSONB_ARRAY));
    query(client, VITALS, &vitals).await?;
    client.batch_execute("COMMIT").await?;
    rows.iter_mut().for_each(|row| row.next += 1);
    Ok(())
}

type Value<'a> = &'a (dyn ToSql + Sync);
type Param<'a> = (Value<'a>, Type);

async fn query(client: &Client, sql: &str, params: &[Param<'_>]) -> anyhow::Result<()> {
    client.query_typed(sql, params).await?;
    Ok(())
}

/// As large as what the virtual agents report.
fn disks() -> serde_json::Value {
    let disk = |mount_point: &str, device: &str| {
        serde_json::json!({
            "mount_point": mount_point, "device": device, "fs_type": "ext4",
            "total_bytes": 536_870_912_000_i64, "used_bytes": 128_849_018_880_i64,
        })
    };
    serde_json::json!([
        disk("/", "/dev/nvme0n1p2"),
        disk("/var/lib/postgresql", "/dev/mapper/data-postgresql"),
        disk("/home", "/dev/nvme0n1p3"),
        disk("/var/log", "/dev/mapper/data-log"),
    ])
}
