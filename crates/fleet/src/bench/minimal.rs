//! The minimal loop: the narrowest tables and the fewest statements that keep samples and books.
//!
//! A sample is a row of integers and `real`s; names, devices and totals of disks are not repeated in it. One
//! call of one function moves the books of a whole batch by a conditional UPDATE, stores the rows of the agents
//! that moved, and updates their latest vitals. Everything else that the service must do (partitions, gaps,
//! late samples, inactive agents) is missing: no complete statement can be cheaper. The tables have a schema
//! of their own in the lab's database.

use std::ops::Range;

use jiff::Timestamp;
use rand::seq::SliceRandom;
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, NoTls,
    types::{ToSql, Type},
};

/// As many as virtual agents report.
pub const DISKS: usize = 4;

const SCHEMA: &str = "
    CREATE SCHEMA bench_minimal;
    CREATE TABLE bench_minimal.books (
        agent_no integer PRIMARY KEY, is_active boolean NOT NULL, acked_seq bigint NOT NULL, stored_count bigint NOT NULL
    ) WITH (fillfactor = 50);
    CREATE TABLE bench_minimal.samples (
        sampled_at timestamptz NOT NULL, seq bigint NOT NULL, memory_used bigint NOT NULL, swap_used bigint NOT NULL,
        network_rx bigint NOT NULL, network_tx bigint NOT NULL, agent_no integer NOT NULL, uptime integer NOT NULL,
        processes integer NOT NULL, cpu real NOT NULL, load_1m real NOT NULL, load_5m real NOT NULL, load_15m real NOT NULL,
        disks bigint[] NOT NULL);
    CREATE INDEX ON bench_minimal.samples (agent_no, sampled_at);
    CREATE TABLE bench_minimal.latest (LIKE bench_minimal.samples, PRIMARY KEY (agent_no)) WITH (fillfactor = 50);
    CREATE FUNCTION bench_minimal.append(
        agent_nos integer[], seqs bigint[], sampled_at timestamptz, cpus real[], loads_1m real[], loads_5m real[], loads_15m real[],
        memory bigint[], swap bigint[], uptimes integer[], processes integer[], rx bigint[], tx bigint[], disks bigint[], width integer
    ) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        stored bigint;
    BEGIN
        WITH batch AS (
            SELECT append.sampled_at, b.*, append.disks[(n - 1) * width + 1 : n * width] AS disks
              FROM unnest(agent_nos, seqs, cpus, loads_1m, loads_5m, loads_15m, memory, swap, uptimes, append.processes, rx, tx)
                   WITH ORDINALITY AS b(agent_no, seq, cpu, load_1m, load_5m, load_15m, memory_used, swap_used, uptime, processes,
                                        network_rx, network_tx, n)),
        moved AS (
            UPDATE bench_minimal.books s SET acked_seq = batch.seq, stored_count = s.stored_count + 1
              FROM batch
             WHERE s.agent_no = batch.agent_no AND s.acked_seq = batch.seq - 1 AND s.is_active
            RETURNING batch.*),
        latest AS (
            UPDATE bench_minimal.latest l
               SET sampled_at = m.sampled_at, seq = m.seq, cpu = m.cpu, load_1m = m.load_1m, load_5m = m.load_5m,
                   load_15m = m.load_15m, memory_used = m.memory_used, swap_used = m.swap_used, uptime = m.uptime,
                   processes = m.processes, network_rx = m.network_rx, network_tx = m.network_tx, disks = m.disks
              FROM moved m
             WHERE l.agent_no = m.agent_no AND l.sampled_at <= m.sampled_at),
        history AS (
            INSERT INTO bench_minimal.samples (sampled_at, seq, memory_used, swap_used, network_rx, network_tx, agent_no, uptime,
                                               processes, cpu, load_1m, load_5m, load_15m, disks)
            SELECT m.sampled_at, m.seq, m.memory_used, m.swap_used, m.network_rx, m.network_tx, m.agent_no, m.uptime,
                   m.processes, m.cpu, m.load_1m, m.load_5m, m.load_15m, m.disks
              FROM moved m)
        SELECT count(*) INTO stored FROM moved;
        RETURN stored;
    END $$";
const AGENTS: &str = "
    INSERT INTO bench_minimal.books SELECT n, true, 0, 0 FROM generate_series(1, $1) n;
    INSERT INTO bench_minimal.latest
    SELECT '-infinity', 0, 0, 0, 0, 0, n, 0, 0, 0, 0, 0, 0, '{}' FROM generate_series(1, $1) n;
    ANALYZE bench_minimal.books, bench_minimal.latest";
const APPEND: &str =
    "SELECT bench_minimal.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// The tables, and the connection that writes them.
#[derive(Debug)]
pub struct Minimal {
    client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
    /// The numbers of the agents, in the order in which they report. Like that of a fleet, it has nothing to do with
    /// the order of their rows.
    agents: Vec<i32>,
    /// Of each agent, in the same order.
    acked: Vec<i64>,
}

impl Minimal {
    pub async fn create(url: &str, agents: usize) -> anyhow::Result<Minimal> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        let connection = tokio::spawn(connection);
        client.batch_execute(SCHEMA).await?;
        let rows = AGENTS.replace("$1", &agents.to_string());
        client.batch_execute(&rows).await?;
        let mut order: Vec<i32> = (1..=agents as i32).collect();
        order.shuffle(&mut rand::rng());
        Ok(Minimal {
            client,
            connection,
            agents: order,
            acked: vec![0; agents],
        })
    }

    /// Stores one sample of each of these agents.
    pub async fn append(&mut self, which: Range<usize>, now: Timestamp) -> anyhow::Result<()> {
        let many = which.len();
        let agents = &self.agents[which.clone()];
        let seqs: Vec<i64> = self.acked[which.clone()]
            .iter()
            .map(|seq| seq + 1)
            .collect();
        let (real, int4, int8) = (
            vec![12.5_f32; many],
            vec![240_i32; many],
            vec![3_i64 << 30; many],
        );
        let (disks, width) = (vec![120_i64 << 30; many * DISKS], DISKS as i32);
        let mut values: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&agents, Type::INT4_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&now, Type::TIMESTAMPTZ),
        ];
        values.extend((0..4).map(|_| (&real as _, Type::FLOAT4_ARRAY)));
        values.extend((0..2).map(|_| (&int8 as _, Type::INT8_ARRAY)));
        values.extend((0..2).map(|_| (&int4 as _, Type::INT4_ARRAY)));
        values.extend((0..2).map(|_| (&int8 as _, Type::INT8_ARRAY)));
        values.push((&disks, Type::INT8_ARRAY));
        values.push((&width, Type::INT4));
        let rows = self.client.query_typed(APPEND, &values).await?;
        let stored = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0))?;
        anyhow::ensure!(
            stored == many as i64,
            "{stored} of {many} samples were stored"
        );
        self.acked[which].iter_mut().for_each(|seq| *seq += 1);
        Ok(())
    }
}

impl Drop for Minimal {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[cfg(test)]
mod tests {
    use svc_sandbox::{query, test_database};

    use super::*;

    #[tokio::test]
    async fn the_minimal_loop_keeps_samples_books_and_latest_vitals() -> anyhow::Result<()> {
        let database = test_database("minimal", async |_| Ok(())).await?;
        let mut minimal = Minimal::create(database.url(), 5).await?;
        for which in [0..3, 3..5, 0..3] {
            minimal.append(which, Timestamp::now()).await?;
        }
        let shown = async |sql| query(database.url(), sql).await;
        let samples = "SELECT count(*), count(DISTINCT (agent_no, seq)), max(cardinality(disks)) FROM bench_minimal.samples";
        assert_eq!(shown(samples).await?, format!("8|8|{DISKS}"));
        let books = "SELECT string_agg(acked_seq::text, ' ' ORDER BY acked_seq DESC) FROM bench_minimal.books WHERE acked_seq = stored_count";
        assert_eq!(shown(books).await?, "2 2 2 1 1");
        let latest = "SELECT count(*) FROM bench_minimal.latest l JOIN bench_minimal.samples s USING (agent_no, seq, sampled_at)";
        assert_eq!(shown(latest).await?, "5");
        minimal.acked[0] = 0;
        assert!(
            minimal.append(0..1, Timestamp::now()).await.is_err(),
            "a duplicate"
        );
        Ok(())
    }
}
