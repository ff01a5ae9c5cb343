//! The general path: ranges that overlap, arrive out of order or contain gaps, and agents whose
//! numbers or shape are not known yet. It locks the agents and reads their watermarks first; at the end it
//! writes samples, gaps, watermarks and books.
//!
//! **Invariant:** stored + rejected + gaps = acked_seq for every agent after every commit. A
//! constraint of the table enforces it.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    GapKind, GapRow, Range,
    columns::{Entry, with_samples},
};
use crate::{arrays::Arrays, error::StoreError, ids::AgentId, record::record, tx::Tx};

/// The host, the numbers and the shape let the next samples take the usual path. They are those of the
/// agent's present host: samples of a host that it has left do not change them.
const BOOKS: &str = "-- samples_append
    UPDATE agent_state s
       SET acked_seq = m.acked_seq, stored_count = s.stored_count + m.stored,
           rejected_count = s.rejected_count + m.rejected, gap_count = s.gap_count + m.gaps,
           agent_no = m.agent_no, host_no = CASE a.host_id WHEN m.host_id THEN m.host_no ELSE s.host_no END,
           shape = CASE a.host_id WHEN m.host_id THEN coalesce(m.shape, CASE s.host_no WHEN m.host_no THEN s.shape END)
                                  ELSE s.shape END,
           numbered_host = CASE a.host_id WHEN m.host_id THEN m.host_id ELSE s.numbered_host END
      FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                  $6::uuid[], $7::integer[], $8::integer[], $9::bigint[])
           AS m(agent_id, acked_seq, stored, rejected, gaps, host_id, agent_no, host_no, shape)
      JOIN agents a ON a.id = m.agent_id
     WHERE s.agent_id = m.agent_id";

record! {
    /// The integers that stand for the agent and the host of a range.
    #[derive(Clone, Copy)]
    struct Numbers {
        agent_no: i32,
        host_no: i32,
    }
}

/// The new watermark of one agent, what the batch adds to its counters, and what is known of its
/// newest range.
#[derive(Clone, Copy)]
struct Entries {
    acked_seq: i64,
    stored: i64,
    rejected: i64,
    gaps: i64,
    host_id: Uuid,
    numbers: Numbers,
    shape: Option<i64>,
}

impl Tx {
    /// Locks the active agents of these ranges and reads their watermarks. The lock lasts until
    /// the commit. Its order by id prevents deadlocks between appends.
    pub(super) async fn watermarks_lock(
        &self,
        ranges: &[&Range],
    ) -> Result<BTreeMap<AgentId, i64>, StoreError> {
        // OFFSET 0 lets the planner find agents by their primary key alone, as in migration 0021.
        let sql = "-- samples_append
            SELECT s.agent_id, s.acked_seq FROM agent_state s
             CROSS JOIN LATERAL (SELECT a.status FROM agents a WHERE a.id = s.agent_id OFFSET 0) a
             WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s";
        let agents: Vec<Uuid> = ranges.iter().map(|range| range.agent_id.0).collect();
        let rows = self.query(sql, &[(&agents, Type::UUID_ARRAY)]).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    }

    async fn gaps_insert(&self, ranges: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        let mut gaps: Vec<(Uuid, &GapRow)> = Vec::new();
        for range in ranges {
            gaps.extend(range.gaps.iter().map(|gap| (range.agent_id.0, gap)));
        }
        if gaps.is_empty() {
            return Ok(());
        }
        let sql = "-- samples_append
            INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])";
        let columns = Arrays::default()
            .column(Type::UUID_ARRAY, &gaps, |(agent, _)| *agent)
            .column(Type::INT8_ARRAY, &gaps, |(_, gap)| gap.first_seq)
            .column(Type::INT8_ARRAY, &gaps, |(_, gap)| gap.last_seq)
            .column(Type::TEXT_ARRAY, &gaps, |(_, gap)| gap.kind.as_str())
            .column(Type::TEXT_ARRAY, &gaps, |(_, gap)| &*gap.reason);
        self.execute(sql, &columns.params()).await.map(drop)
    }

    /// Writes ranges of locked agents that begin exactly above their watermarks.
    pub(super) async fn ranges_write(&self, ranges: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        if ranges.is_empty() {
            return Ok(());
        }
        let entries: Vec<Entry<'_>> = ranges
            .iter()
            .map(|range| Entry::new(range.host_id, range.samples.iter()))
            .collect();
        let numbers = self.numbers_prepare(ranges, &entries).await?;
        self.samples_store(&entries, &numbers).await?;
        self.gaps_insert(ranges).await?;
        let columns = books(ranges, &entries, &numbers);
        self.execute(BOOKS, &columns.params()).await.map(drop)
    }

    /// The numbers of each range. Missing ones are assigned, and the shapes are stored.
    async fn numbers_prepare(
        &self,
        ranges: &[Cow<'_, Range>],
        entries: &[Entry<'_>],
    ) -> Result<Vec<Numbers>, StoreError> {
        let mut shapes: BTreeMap<(Uuid, i64), Value> = BTreeMap::new();
        for entry in entries {
            for (sample, shape) in &entry.samples {
                let parts = shapes.entry((entry.host_id.0, *shape));
                parts.or_insert_with(|| sample.shape_parts());
            }
        }
        let shapes: Vec<((Uuid, i64), Value)> = shapes.into_iter().collect();
        let columns = Arrays::default()
            .column(Type::UUID_ARRAY, ranges, |range| range.agent_id.0)
            .column(Type::UUID_ARRAY, ranges, |range| range.host_id.0)
            .column(Type::UUID_ARRAY, &shapes, |((host, _), _)| *host)
            .column(Type::INT8_ARRAY, &shapes, |((_, shape), _)| *shape)
            .column(Type::JSONB_ARRAY, &shapes, |(_, parts)| parts.clone());
        let sql = columns.call("samples_append", "samples_prepare");
        let rows = self.query(&sql, &columns.params()).await?;
        rows.iter().map(Numbers::from_row).collect()
    }

    async fn samples_store(
        &self,
        entries: &[Entry<'_>],
        numbers: &[Numbers],
    ) -> Result<(), StoreError> {
        if entries.iter().all(|entry| entry.samples.is_empty()) {
            return Ok(());
        }
        let columns = Arrays::default()
            .column(Type::INT4_ARRAY, numbers, |numbers| numbers.host_no)
            .column(Type::INT4_ARRAY, numbers, |numbers| numbers.agent_no);
        let entries: Vec<&Entry<'_>> = entries.iter().collect();
        let columns = with_samples(columns, &entries);
        let sql = columns.call("samples_append", "samples_store");
        self.execute(&sql, &columns.params()).await.map(drop)
    }
}

/// The parameters of `BOOKS`. Several ranges of one agent add up; they are in the order of their numbers.
fn books<'a>(ranges: &[Cow<'_, Range>], entries: &[Entry<'_>], numbers: &[Numbers]) -> Arrays<'a> {
    let mut agents: BTreeMap<AgentId, Entries> = BTreeMap::new();
    for ((range, entry), numbers) in ranges.iter().zip(entries).zip(numbers) {
        let known = agents.get(&range.agent_id);
        let sum = |of: fn(&Entries) -> i64| known.map_or(0, of);
        let shape = entry.last_shape();
        let written = Entries {
            acked_seq: sum(|entries| entries.acked_seq).max(range.last_seq),
            stored: sum(|entries| entries.stored) + range.stored(),
            rejected: sum(|entries| entries.rejected)
                + range.missing(|kind| kind == GapKind::Rejected),
            gaps: sum(|entries| entries.gaps) + range.missing(|kind| kind != GapKind::Rejected),
            host_id: range.host_id.0,
            numbers: *numbers,
            shape: shape.or(known.and_then(|entries| entries.shape)),
        };
        agents.insert(range.agent_id, written);
    }
    let agents: Vec<(AgentId, Entries)> = agents.into_iter().collect();
    Arrays::default()
        .column(Type::UUID_ARRAY, &agents, |(agent, _)| agent.0)
        .column(Type::INT8_ARRAY, &agents, |(_, sums)| sums.acked_seq)
        .column(Type::INT8_ARRAY, &agents, |(_, sums)| sums.stored)
        .column(Type::INT8_ARRAY, &agents, |(_, sums)| sums.rejected)
        .column(Type::INT8_ARRAY, &agents, |(_, sums)| sums.gaps)
        .column(Type::UUID_ARRAY, &agents, |(_, sums)| sums.host_id)
        .column(Type::INT4_ARRAY, &agents, |(_, sums)| sums.numbers.agent_no)
        .column(Type::INT4_ARRAY, &agents, |(_, sums)| sums.numbers.host_no)
        .column(Type::INT8_ARRAY, &agents, |(_, sums)| sums.shape)
}
