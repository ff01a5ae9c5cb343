//! The bare SQL loop: the cost of a heartbeat in PostgreSQL alone, without the service.
//!
//! It executes the statements of `samples_append` in `crates/store` on the same tables and rows, at the
//! batch size and pace that were measured with the service. The statements are copied, because this crate
//! measures the store from outside and cannot call it; a test compares them with the store's source.

use std::{pin::pin, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::{
    Client, NoTls,
    binary_copy::BinaryCopyInWriter,
    types::{ToSql, Type},
};
use uuid::Uuid;

use crate::lab::Lab;

const LOCK: &str = "
    SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
     WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";
const COPY: &str = "
    COPY host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                       memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                       uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, disks)
    FROM STDIN (FORMAT binary)";
const ADVANCE: &str = "
    WITH books AS (
        UPDATE agent_state s
           SET acked_seq = m.acked_seq, stored_count = s.stored_count + m.stored,
               rejected_count = s.rejected_count + m.rejected, gap_count = s.gap_count + m.gaps
          FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
               AS m(agent_id, acked_seq, stored, rejected, gaps)
         WHERE s.agent_id = m.agent_id),
    changes AS (
        INSERT INTO rollup_changes (hour, host_ids)
        SELECT hour, array_agg(host_id) FROM unnest($6::timestamptz[], $7::uuid[]) AS c(hour, host_id) GROUP BY hour)
    UPDATE hosts h
       SET vitals_at = v.sampled_at, cpu_percent = v.cpu_percent,
           load_1m = v.load_1m, load_5m = v.load_5m, load_15m = v.load_15m,
           memory_used_bytes = v.memory_used_bytes, memory_total_bytes = v.memory_total_bytes,
           swap_used_bytes = v.swap_used_bytes, swap_total_bytes = v.swap_total_bytes,
           uptime_seconds = v.uptime_seconds, process_count = v.process_count,
           network_rx_bytes = v.network_rx_bytes, network_tx_bytes = v.network_tx_bytes, disks = v.disks,
           fullest_disk_percent = v.fullest_disk_percent, fullest_disk_mount_point = v.fullest_disk_mount_point
      FROM unnest($8::uuid[], $9::timestamptz[], $10::float8[], $11::float8[], $12::float8[], $13::float8[],
                  $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
                  $20::bigint[], $21::bigint[], $22::jsonb[], $23::smallint[], $24::text[])
           AS v(host_id, sampled_at, cpu_percent, load_1m, load_5m, load_15m,
                memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count,
                network_rx_bytes, network_tx_bytes, disks, fullest_disk_percent, fullest_disk_mount_point)
     WHERE h.id = v.host_id AND (h.vitals_at IS NULL OR h.vitals_at <= v.sampled_at)";

/// The cost of a heartbeat in PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SqlCost {
    pub batch: u64,
    pub per_second: f64,
    pub postgres_us: f64,
    pub wal_bytes: f64,
}

/// The value of every vital sign of that type.
const FLOAT: f64 = 12.5;
const INTEGER: i64 = 3 << 30;

/// An agent, its host and its next sequence number.
struct Row {
    agent: Uuid,
    host: Uuid,
    next: i64,
}

/// Runs for `time` on a lab whose instances are stopped.
pub async fn run(lab: &Lab, batch: u64, rate: f64, time: Duration) -> anyhow::Result<SqlCost> {
    let (client, connection) = tokio_postgres::connect(&lab.database_url(), NoTls).await?;
    let connection = tokio::spawn(connection);
    let mut rows = rows(&client).await?;
    let batch = batch.clamp(1, rows.len() as u64);
    let (before, began) = (lab.usage().await?, Instant::now());
    let mut done = 0;
    while began.elapsed() < time {
        let start = done as usize % rows.len();
        let end = (start + batch as usize).min(rows.len());
        append(&client, &mut rows[start..end]).await?;
        done += (end - start) as u64;
        sleep_until(began + Duration::from_secs_f64(done as f64 / rate)).await;
    }
    let (after, seconds) = (lab.usage().await?, began.elapsed().as_secs_f64());
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

/// In the order of their keys, in which every writer locks them.
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
    anyhow::ensure!(!rows.is_empty(), "there is no agent to write for");
    Ok(rows)
}

type Value<'a> = &'a (dyn ToSql + Sync);
type Param<'a> = (Value<'a>, Type);

async fn append(client: &Client, rows: &mut [Row]) -> anyhow::Result<()> {
    let now = Timestamp::now();
    client.batch_execute("BEGIN").await?;
    let agents: Vec<Uuid> = rows.iter().map(|row| row.agent).collect();
    let locked = [(&agents as Value<'_>, Type::UUID_ARRAY)];
    client.query_typed(LOCK, &locked).await?;
    copy(client, rows, now).await?;
    advance(client, rows, &agents, now).await?;
    client.batch_execute("COMMIT").await?;
    rows.iter_mut().for_each(|row| row.next += 1);
    Ok(())
}

async fn copy(client: &Client, rows: &[Row], now: Timestamp) -> anyhow::Result<()> {
    let mut types = vec![Type::UUID, Type::UUID, Type::TIMESTAMPTZ, Type::INT8];
    types.extend(vec![Type::FLOAT8; 4]);
    types.extend(vec![Type::INT8; 8]);
    types.push(Type::JSONB);
    let mut writer = pin!(BinaryCopyInWriter::new(client.copy_in(COPY).await?, &types));
    let disks = disks();
    for row in rows {
        let mut values: Vec<Value<'_>> = vec![&row.host, &row.agent, &now, &row.next];
        values.extend([&FLOAT as Value<'_>; 4]);
        values.extend([&INTEGER as Value<'_>; 8]);
        values.push(&disks);
        writer.as_mut().write(&values).await?;
    }
    writer.finish().await?;
    Ok(())
}

/// Updates the books, the hours to roll up, and the hosts' latest vitals.
async fn advance(
    client: &Client,
    rows: &[Row],
    agents: &[Uuid],
    now: Timestamp,
) -> anyhow::Result<()> {
    let many = rows.len();
    let hosts: Vec<Uuid> = rows.iter().map(|row| row.host).collect();
    let numbers: Vec<i64> = rows.iter().map(|row| row.next).collect();
    let hour = Timestamp::from_second(now.as_second() / 3600 * 3600)?;
    let hours = vec![hour; many];
    let (times, floats, integers) = (vec![now; many], vec![FLOAT; many], vec![INTEGER; many]);
    let (ones, zeros) = (vec![1_i64; many], vec![0_i64; many]);
    let (disks, percents, mounts) = (vec![disks(); many], vec![24_i16; many], vec!["/"; many]);
    let mut values: Vec<Param<'_>> = vec![
        (&agents, Type::UUID_ARRAY),
        (&numbers, Type::INT8_ARRAY),
        (&ones, Type::INT8_ARRAY),
        (&zeros, Type::INT8_ARRAY),
        (&zeros, Type::INT8_ARRAY),
        (&hours, Type::TIMESTAMPTZ_ARRAY),
        (&hosts, Type::UUID_ARRAY),
        (&hosts, Type::UUID_ARRAY),
        (&times, Type::TIMESTAMPTZ_ARRAY),
    ];
    values.extend((0..4).map(|_| (&floats as Value<'_>, Type::FLOAT8_ARRAY)));
    values.extend((0..8).map(|_| (&integers as Value<'_>, Type::INT8_ARRAY)));
    values.push((&disks, Type::JSONB_ARRAY));
    values.push((&percents, Type::INT2_ARRAY));
    values.push((&mounts, Type::TEXT_ARRAY));
    client.execute_typed(ADVANCE, &values).await?;
    Ok(())
}

/// As large as the disks that virtual agents report.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_equal_those_of_the_store() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let books = words(include_str!("../../../store/src/samples/advance.rs"));
        let history = words(include_str!("../../../store/src/samples/history.rs"));
        assert!(books.contains(&words(LOCK)));
        assert!(books.contains(&words(ADVANCE)));
        assert!(history.contains(&words(COPY)));
    }
}
