//! An instance of the previous version on the migrated schema: it writes samples through the view
//! `host_metrics`, with its own statements, while this version writes too.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use svc_store::{AgentId, Range, SampleRow};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_postgres::{
    Client,
    binary_copy::BinaryCopyInWriter,
    types::{Json, ToSql, Type},
};
use uuid::Uuid;

use crate::{
    document,
    fixtures::{TestAgent, after, hours_ago, sample, world},
    support::TestStore,
};

const LOCK: &str = "
    SELECT s.agent_id, s.acked_seq FROM agent_state s JOIN agents a ON a.id = s.agent_id
     WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";

const COPY: &str = "
    COPY host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                       memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                       uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, disks)
    FROM STDIN (FORMAT binary)";

const MOVE: &str = "
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

/// The writer of the previous version. Ranges have no gaps.
pub struct Previous {
    client: Client,
}

impl Previous {
    pub fn new(client: Client) -> Previous {
        Previous { client }
    }

    pub async fn append(&self, ranges: &[Range]) -> Result<()> {
        let begin = "BEGIN; SELECT set_config('statement_timeout', '5000', true), set_config('lock_timeout', '2000', true), \
                     set_config('idle_in_transaction_session_timeout', '10000', true)";
        self.client.batch_execute(begin).await?;
        match self.write(ranges).await {
            Ok(()) => {
                let commit = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL; COMMIT";
                self.client.batch_execute(commit).await?;
                Ok(())
            }
            Err(error) => {
                self.client.batch_execute("ROLLBACK").await?;
                Err(error)
            }
        }
    }

    async fn write(&self, ranges: &[Range]) -> Result<()> {
        let agents: Vec<Uuid> = ranges.iter().map(|range| range.agent_id.0).collect();
        let params = [(&agents as &(dyn ToSql + Sync), Type::UUID_ARRAY)];
        let locked = self.client.query_typed(LOCK, &params).await?;
        let acked = locked.iter().map(|row| (row.get(0), row.get(1))).collect();
        let fresh = fresh(ranges, acked);
        if fresh.is_empty() {
            return Ok(());
        }
        self.copy(&fresh).await?;
        self.advance(&fresh).await
    }

    async fn copy(&self, ranges: &[(Range, Vec<SampleRow>)]) -> Result<()> {
        let keys = vec![Type::UUID, Type::UUID, Type::TIMESTAMPTZ, Type::INT8];
        let types = [
            keys,
            vec![Type::FLOAT8; 4],
            vec![Type::INT8; 8],
            vec![Type::JSONB],
        ]
        .concat();
        let sink = self.client.copy_in(COPY).await?;
        let mut writer = Box::pin(BinaryCopyInWriter::new(sink, &types));
        for (range, samples) in ranges {
            for s in samples {
                let disks = Json(disks(s));
                let row: [&(dyn ToSql + Sync); 17] = [
                    &range.host_id.0,
                    &range.agent_id.0,
                    &s.sampled_at,
                    &s.seq,
                    &s.cpu_percent,
                    &s.load[0],
                    &s.load[1],
                    &s.load[2],
                    &s.memory_used_bytes,
                    &s.memory_total_bytes,
                    &s.swap_used_bytes,
                    &s.swap_total_bytes,
                    &s.uptime_seconds,
                    &s.process_count,
                    &s.network_rx_bytes,
                    &s.network_tx_bytes,
                    &disks,
                ];
                writer.as_mut().write(&row).await?;
            }
        }
        writer.as_mut().finish().await?;
        Ok(())
    }

    async fn advance(&self, ranges: &[(Range, Vec<SampleRow>)]) -> Result<()> {
        let latest: Vec<&SampleRow> = ranges
            .iter()
            .filter_map(|(_, samples)| samples.last())
            .collect();
        let agents: Vec<Uuid> = ranges.iter().map(|(range, _)| range.agent_id.0).collect();
        let hosts: Vec<Uuid> = ranges.iter().map(|(range, _)| range.host_id.0).collect();
        let acked: Vec<i64> = ranges.iter().map(|(range, _)| range.last_seq).collect();
        let stored: Vec<i64> = ranges
            .iter()
            .map(|(_, samples)| samples.len() as i64)
            .collect();
        let none = vec![0_i64; ranges.len()];
        let hours: Vec<Timestamp> = latest.iter().map(|s| hour(s.sampled_at)).collect();
        let times: Vec<Timestamp> = latest.iter().map(|s| s.sampled_at).collect();
        let floats = |of: fn(&SampleRow) -> f64| latest.iter().map(|s| of(s)).collect::<Vec<f64>>();
        let numbers =
            |of: fn(&SampleRow) -> i64| latest.iter().map(|s| of(s)).collect::<Vec<i64>>();
        let floats = [
            floats(|s| s.cpu_percent),
            floats(|s| s.load[0]),
            floats(|s| s.load[1]),
            floats(|s| s.load[2]),
        ];
        let numbers = [
            numbers(|s| s.memory_used_bytes),
            numbers(|s| s.memory_total_bytes),
            numbers(|s| s.swap_used_bytes),
            numbers(|s| s.swap_total_bytes),
            numbers(|s| s.uptime_seconds),
            numbers(|s| s.process_count),
            numbers(|s| s.network_rx_bytes),
            numbers(|s| s.network_tx_bytes),
        ];
        let disks: Vec<Json<Value>> = latest.iter().map(|s| Json(disks(s))).collect();
        let (percents, mounts) = (vec![63_i16; latest.len()], vec!["/var"; latest.len()]);
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&agents, Type::UUID_ARRAY),
            (&acked, Type::INT8_ARRAY),
            (&stored, Type::INT8_ARRAY),
            (&none, Type::INT8_ARRAY),
            (&none, Type::INT8_ARRAY),
            (&hours, Type::TIMESTAMPTZ_ARRAY),
            (&hosts, Type::UUID_ARRAY),
            (&hosts, Type::UUID_ARRAY),
            (&times, Type::TIMESTAMPTZ_ARRAY),
        ];
        params.extend(
            floats
                .iter()
                .map(|column| (column as _, Type::FLOAT8_ARRAY)),
        );
        params.extend(numbers.iter().map(|column| (column as _, Type::INT8_ARRAY)));
        params.push((&disks, Type::JSONB_ARRAY));
        params.push((&percents, Type::INT2_ARRAY));
        params.push((&mounts, Type::TEXT_ARRAY));
        self.client.execute_typed(MOVE, &params).await?;
        Ok(())
    }
}

/// What is above the watermark and adjacent to it.
fn fresh(ranges: &[Range], acked: BTreeMap<Uuid, i64>) -> Vec<(Range, Vec<SampleRow>)> {
    let new = |range: &Range| {
        let acked = *acked.get(&range.agent_id.0)?;
        let continues = range.first_seq <= acked + 1 && range.last_seq > acked;
        let samples = range.samples.iter().filter(|sample| sample.seq > acked);
        continues.then(|| (range.clone(), samples.cloned().collect()))
    };
    ranges.iter().filter_map(new).collect()
}

fn hour(at: Timestamp) -> Timestamp {
    let second = at.as_second();
    Timestamp::from_second(second - second.rem_euclid(3600)).unwrap_or(at)
}

fn disks(sample: &SampleRow) -> Value {
    let disk = |disk: &svc_store::DiskRow| {
        json!({ "mount_point": disk.mount_point, "device": disk.device, "fs_type": disk.fs_type,
                "total_bytes": disk.total_bytes, "used_bytes": disk.used_bytes })
    };
    sample.disks.iter().map(disk).collect()
}

#[tokio::test]
async fn a_sample_of_the_previous_version_is_read_like_one_of_this_version() -> Result<()> {
    let (store, one) = world().await?;
    let two = TestAgent::new(&store).await?;
    let samples: Vec<SampleRow> = (1..=3)
        .map(|seq| sample(seq, after(hours_ago(1), seq)))
        .collect();
    one.store(&store, &samples).await?;
    let previous = Previous::new(store.connect().await?);
    previous.append(&[two.range(&samples, &[])]).await?;
    let differences = "
        SELECT count(*) FROM host_metrics a JOIN host_metrics b USING (seq)
         WHERE to_jsonb(a) - '{host_id, agent_id}'::text[] <> to_jsonb(b) - '{host_id, agent_id}'::text[]";
    assert_eq!(store.sql(differences).await?, "0");
    assert_eq!(store.sql("SELECT count(*) FROM host_metrics").await?, "6");
    let arrays = format!(
        "SELECT concat_ws(' ', count(*) FILTER (WHERE to_jsonb(a) - 'agent_id' = to_jsonb(b) - 'agent_id'), count(*))
           FROM host_chunks('{}', '-infinity', 'infinity') a JOIN host_chunks('{}', '-infinity', 'infinity') b USING (seq)",
        one.host, two.host
    );
    assert_eq!(store.sql(&arrays).await?, "3 3", "read as arrays");
    let vitals = "
        SELECT count(DISTINCT to_jsonb(o) - '{id, hostname, created_at, agent_id, presence_since}'::text[]) FROM host_overview o";
    assert_eq!(store.sql(vitals).await?, "1", "the latest vitals differ");
    let older = two.range(&[sample(4, hours_ago(2))], &[]);
    previous.append(&[older]).await?;
    let newest = "SELECT bool_and(vitals_at > now() - interval '2 hours') FROM host_vitals";
    assert_eq!(store.sql(newest).await?, "t");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_at_once_store_each_number_once() -> Result<()> {
    let (store, first) = world().await?;
    let mut agents = TestAgent::many(&store, 12).await?;
    agents.push(first);
    let end = Instant::now() + Duration::from_secs(4);
    let mut writers = JoinSet::new();
    for _ in 0..2 {
        let previous = Previous::new(store.connect().await?);
        writers.spawn(write(store.clone(), agents.clone(), end, Some(previous)));
        writers.spawn(write(store.clone(), agents.clone(), end, None));
    }
    let mut batches = Vec::new();
    while let Some(written) = writers.join_next().await {
        batches.push(written??);
    }
    ensure!(batches.iter().all(|batches| *batches > 2), "{batches:?}");
    let books = "SELECT bool_and(stored_count = acked_seq AND acked_seq > 0 AND rows = acked_seq AND numbers = acked_seq)
                   FROM agent_state JOIN (SELECT agent_id, count(*) AS rows, count(DISTINCT seq) AS numbers
                                            FROM host_metrics GROUP BY agent_id) m USING (agent_id)";
    assert_eq!(store.sql(books).await?, "t");
    for query in ["books-counters", "books-rows"] {
        assert_eq!(
            store
                .sql(document::query(query).trim_end_matches(';'))
                .await?,
            "",
            "{query}"
        );
    }
    Ok(())
}

/// Appends from a little before the watermark on, until the end.
async fn write(
    store: TestStore,
    agents: Vec<TestAgent>,
    end: Instant,
    previous: Option<Previous>,
) -> Result<u64> {
    let mut batches = 0;
    while Instant::now() < end {
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
        let marks = store.watermarks(&ids).await?;
        let acked = |agent: &TestAgent| {
            let mark = marks.iter().find(|mark| mark.agent_id == agent.id);
            mark.map(|mark| mark.acked_seq).context("no watermark")
        };
        let mut ranges = Vec::new();
        for agent in &agents {
            let first = (acked(agent)? - i64::from(rand::random_range(0..3_u8))).max(0) + 1;
            let last = first + i64::from(rand::random_range(0..5_u8));
            let samples: Vec<SampleRow> = (first..=last)
                .map(|seq| sample(seq, after(hours_ago(1), seq)))
                .collect();
            ranges.push(agent.range(&samples, &[]));
        }
        match &previous {
            Some(previous) => previous.append(&ranges).await?,
            None => drop(store.samples_append(&ranges).await?),
        }
        batches += 1;
        sleep(Duration::from_millis(1)).await;
    }
    Ok(batches)
}
