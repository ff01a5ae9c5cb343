//! Rows into chunks: one row for each host, hour, agent and shape, with an array for each value.
//!
//! A chunk that exists is read back and written again with the new samples among the old ones. Its arrays
//! are in the order of the sequence numbers; the values of the parts are packed, part by part
//! (`0025_parts_packed.sql` says how). `uptime_seconds` is stored without the seconds in `at`: values that resemble
//! each other compress best.

use std::sync::LazyLock;

use jiff::Timestamp;

use super::Hosts;
use crate::{error::StoreError, tx::Tx, vitals::SCALARS};

/// The chunks that a step wrote: one entry in each list for each chunk.
pub(super) struct Chunks {
    pub(super) host_nos: Vec<i32>,
    pub(super) hours: Vec<Timestamp>,
    pub(super) shapes: Vec<i64>,
    /// How many rows they were made of.
    pub(super) samples: i64,
}

/// The bounds of the days that have a partition of chunks, for a WITH clause, and a condition by them.
const KEPT: &str = "kept AS MATERIALIZED (
        SELECT min(day)::timestamp AT TIME ZONE 'UTC' AS since, (max(day) + 1)::timestamp AT TIME ZONE 'UTC' AS until
          FROM sample_days WHERE parent = 'sample_chunks'::regclass AND NOT detaching)";
const IS_KEPT: &str =
    "sampled_at >= (SELECT since FROM kept) AND sampled_at < (SELECT until FROM kept)";

/// OFFSET keeps the planner from computing an hour again wherever it is used. (A join with date_bin would be
/// a set of rows for each sample.) A slice of one column is faster than its elements, one by one.
static WRITE: LazyLock<String> = LazyLock::new(|| {
    let values = list(str::to_owned);
    let relative = "uptime_seconds - at / 1000000 AS uptime_seconds";
    let of_sample = values.replace("uptime_seconds", relative);
    let of_chunk = list(|name| format!("c.{name}"));
    let aggregates = list(|name| format!("array_agg({name}) AS {name}"));
    let replaced = list(|name| format!("{name} = excluded.{name}"));
    format!(
        "-- compaction_step
    WITH {KEPT},
    fresh AS MATERIALIZED (
        SELECT host_no, hour, agent_no, shape, seq, parts, {of_sample}
          FROM (SELECT *, ((date_part('epoch', sampled_at - hour) * 1000000)::bigint - 1800000000)::integer AS at
                  FROM (SELECT *, date_bin(interval '1 hour', sampled_at, timestamptz 'epoch') AS hour
                          FROM samples_open
                         WHERE arrived_hour = $1 AND host_no >= $2 AND host_no < $3 AND {IS_KEPT} OFFSET 0) binned
                OFFSET 0) placed),
    known AS (
        SELECT c.host_no, c.hour, c.agent_no, c.shape, c.first_seq + coalesce(c.seqs[u.i], u.i - 1),
               ARRAY(SELECT whole.parts[part + u.i] FROM generate_series(0, cardinality(whole.parts) - 1, cardinality(c.at)) part), {of_unnest}
          FROM (SELECT DISTINCT host_no, hour, agent_no, shape FROM fresh) k
         CROSS JOIN LATERAL (
               SELECT * FROM sample_chunks c
                WHERE c.host_no = k.host_no AND c.hour = k.hour AND c.agent_no = k.agent_no AND c.shape = k.shape OFFSET 0) c
         CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) packed
         CROSS JOIN LATERAL parts_values(packed.parts, packed.series, packed.steps, packed.samples, packed.kinds) whole
         CROSS JOIN LATERAL unnest({of_chunk}) WITH ORDINALITY u({values}, i)),
    chunk AS (
        SELECT host_no, hour, agent_no, shape, min(seq) AS first_seq, array_agg(seq) AS seqs,
               max(seq) - min(seq) + 1 = count(*) AS consecutive, count(*)::integer AS samples,
               array_agg(parts) FILTER (WHERE parts <> '{{}}') AS parts, {aggregates}
          FROM (SELECT * FROM fresh UNION ALL SELECT * FROM known ORDER BY host_no, hour, agent_no, shape, seq) s
         GROUP BY host_no, hour, agent_no, shape),
    written AS (
        INSERT INTO sample_chunks (host_no, hour, agent_no, shape, first_seq, seqs, parts_plain, parts_series, parts_steps, {values})
        SELECT host_no, hour, agent_no, shape, first_seq,
               CASE WHEN NOT consecutive THEN ARRAY(SELECT seq - first_seq FROM unnest(seqs) seq) END,
               CASE WHEN packed.series IS NULL AND parts IS NOT NULL
                    THEN ARRAY(SELECT unnest(parts[:][part:part]) FROM generate_series(1, array_length(parts, 2)) part) END,
               packed.series, packed.steps, {values}
          FROM chunk CROSS JOIN LATERAL parts_pack(chunk.parts) packed
        ON CONFLICT (host_no, hour, agent_no, shape) DO UPDATE
           SET first_seq = excluded.first_seq, seqs = excluded.seqs, parts_plain = excluded.parts_plain,
               parts_series = excluded.parts_series, parts_steps = excluded.parts_steps, {replaced}
        RETURNING host_no, hour, shape)
    SELECT coalesce(array_agg(host_no), '{{}}') AS host_nos, coalesce(array_agg(hour), '{{}}') AS hours,
           coalesce(array_agg(shape), '{{}}') AS shapes, (SELECT count(*) FROM fresh) AS samples
      FROM written",
        of_unnest = list(|name| format!("u.{name}")),
    )
});

/// The scalars and the time: the values that have an array of their own.
fn list(value: impl Fn(&str) -> String) -> String {
    let scalars = SCALARS.iter().map(|scalar| scalar.name);
    let values: Vec<String> = scalars.chain(["at"]).map(value).collect();
    values.join(", ")
}

static MOVE: LazyLock<String> = LazyLock::new(|| {
    let values = list(str::to_owned).replace(", at", "");
    format!(
        "-- compaction_set_aside
    WITH {KEPT}
    INSERT INTO samples_open (arrived_hour, host_no, agent_no, sampled_at, seq, shape, parts, {values})
    SELECT (SELECT sample_hour_take()), host_no, agent_no, sampled_at, seq, shape, parts, {values}
      FROM samples_open
     WHERE arrived_hour = $1 AND host_no >= $2 AND host_no < $3 AND {IS_KEPT}"
    )
});

impl Tx {
    /// Writes the chunks of these hosts' rows.
    pub(super) async fn chunks_write(&self, hosts: &Hosts) -> Result<Chunks, StoreError> {
        let row = self.query_one(&WRITE, &hosts.params()).await?;
        Ok(Chunks {
            host_nos: row.try_get("host_nos")?,
            hours: row.try_get("hours")?,
            shapes: row.try_get("shapes")?,
            samples: row.try_get("samples")?,
        })
    }

    /// Stores these hosts' rows in the running hour, as they are.
    pub(super) async fn rows_move(&self, hosts: &Hosts) -> Result<(), StoreError> {
        self.execute(&MOVE, &hosts.params()).await.map(drop)
    }
}
