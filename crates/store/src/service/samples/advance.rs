//! The general path: ranges that overlap, arrive out of order or contain gaps, samples of past hours, and agents whose
//! numbers or list of parts are new. It locks the agents and reads their watermarks first; then it applies the bounds, and at the
//! end it writes samples, gaps, watermarks and books.
//!
//! **Invariant:** stored + rejected + gaps = acked_seq for every agent after every commit. A
//! constraint of the table enforces it.
//!
//! **Repeats.** What the bounds reject is decided and recorded in the transaction that moves the watermark. So a range
//! that is delivered again is a duplicate, and one whose transaction failed is judged as if for the first time.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    GapKind, GapRow, Range,
    columns::{RangeSamples, with_samples},
    hours::Hours,
};
use crate::prelude::*;

/// The host, the numbers and the shape let the next samples be stored as a run. They are those of the
/// agent's present host: samples of a host that it has left do not change them.
const BOOKS: &str = "-- samples_append
    UPDATE agent_state s
       SET acked_seq = m.acked_seq, stored_count = s.stored_count + m.stored,
           rejected_count = s.rejected_count + m.rejected, gap_count = s.gap_count + m.gaps,
           agent_no = m.agent_no, host_no = CASE a.host_id WHEN m.host_id THEN m.host_no ELSE s.host_no END,
           shape = CASE a.host_id WHEN m.host_id THEN coalesce(m.shape, s.shape) ELSE s.shape END,
           numbered_host = CASE a.host_id WHEN m.host_id THEN m.host_id ELSE s.numbered_host END,
           newest_hour = coalesce(m.newest_hour, s.newest_hour), newest_hour_samples = coalesce(m.of_newest, s.newest_hour_samples),
           last_gap_at = CASE WHEN m.rejected + m.gaps > 0 THEN now() ELSE s.last_gap_at END,
           last_dead_letter_at = CASE WHEN m.dead THEN now() ELSE s.last_dead_letter_at END
      FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                  $6::uuid[], $7::integer[], $8::integer[], $9::uuid[], $10::boolean[], $11::integer[], $12::integer[])
           AS m(agent_id, acked_seq, stored, rejected, gaps, host_id, agent_no, host_no, shape, dead, newest_hour, of_newest)
      JOIN agents a ON a.id = m.agent_id
     WHERE s.agent_id = m.agent_id";

/// What to do about an agent or a host whose row another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locked {
    Wait,
    /// Leave the agent out, so that the others do not wait.
    Skip,
}

impl Locked {
    fn sql(self) -> &'static str {
        match self {
            Locked::Wait => "",
            Locked::Skip => "SKIP LOCKED",
        }
    }
}

/// An agent whose row is locked by this transaction.
#[derive(Debug)]
pub(super) struct State {
    pub(super) acked_seq: i64,
    pub(super) shape: Option<Uuid>,
    hours: Hours,
}

/// The integers that stand for the agent and the host of a range.
pub(super) type Numbers = (i32, i32);

/// The new watermark of one agent, what the batch adds to its counters, and what is known of its
/// newest range.
#[derive(Default)]
struct BooksChange {
    acked_seq: i64,
    stored: i64,
    rejected: i64,
    gaps: i64,
    dead_letter: bool,
    host_id: Uuid,
    numbers: Numbers,
    shape: Option<Uuid>,
    newest: Option<(i32, i32)>,
}

impl State {
    fn from_row(row: &Row) -> Result<(AgentId, State)> {
        let newest: Option<i32> = row.try_get(3)?;
        let samples = row.try_get(4)?;
        let state = State {
            acked_seq: row.try_get(1)?,
            shape: row.try_get(2)?,
            hours: Hours::new(newest.map(|hour| (hour, samples)), row.try_get(5)?),
        };
        Ok((row.try_get(0)?, state))
    }
}

impl Tx {
    /// Locks the active agents of these ranges and reads their watermarks. The lock lasts until
    /// the commit. Its order by id prevents deadlocks between appends.
    pub(super) async fn agents_lock(
        &self,
        ranges: &[&Range],
        locked: Locked,
    ) -> Result<BTreeMap<AgentId, State>> {
        // OFFSET 0 lets the planner find agents by their primary key alone, whatever the statistics say of active ones.
        let sql = format!(
            "-- samples_append
            SELECT s.agent_id, s.acked_seq, s.shape, s.newest_hour, s.newest_hour_samples,
                   coalesce(s.newest_hour > extract(epoch FROM now()) / 3600 + 1, false)
              FROM agent_state s
             CROSS JOIN LATERAL (SELECT a.status FROM agents a WHERE a.id = s.agent_id OFFSET 0) a
             WHERE s.agent_id = ANY ($1) AND a.status = 'active' ORDER BY s.agent_id FOR UPDATE OF s {}",
            locked.sql()
        );
        let agents: Vec<Uuid> = ranges.iter().map(|range| range.agent_id.0).collect();
        let rows = self.query(&sql, &params![agents]).await?;
        let mut agents: BTreeMap<AgentId, State> =
            rows.iter().map(State::from_row).collect::<Result<_, _>>()?;
        if locked == Locked::Skip {
            let hosts = self.hosts_locked(ranges).await?;
            let of_host = ranges.iter().filter(|range| hosts.contains(&range.host_id));
            of_host.for_each(|range| drop(agents.remove(&range.agent_id)));
        }
        Ok(agents)
    }

    /// Locks the vitals of the hosts of these ranges. Returns the hosts that were left out because another transaction has
    /// locked their row.
    async fn hosts_locked(&self, ranges: &[&Range]) -> Result<BTreeSet<HostId>> {
        let sql = "-- samples_append
            WITH free AS MATERIALIZED (
                SELECT v.host_id FROM host_vitals v WHERE v.host_id = ANY ($1) ORDER BY v.host_no FOR NO KEY UPDATE SKIP LOCKED)
            SELECT v.host_id FROM host_vitals v WHERE v.host_id = ANY ($1) AND v.host_id NOT IN (SELECT host_id FROM free)";
        let hosts: Vec<Uuid> = ranges.iter().map(|range| range.host_id.0).collect();
        let rows = self.query(sql, &params![hosts]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// The agents of these ranges that are active but not among `agents`: their rows are locked.
    pub(super) async fn agents_left_out(
        &self,
        ranges: &[&Range],
        agents: &BTreeMap<AgentId, State>,
    ) -> Result<Vec<AgentId>> {
        let sql = "-- samples_append
            SELECT a.id FROM agents a WHERE a.id = ANY ($1) AND a.status = 'active'";
        let asked = ranges.iter().map(|range| range.agent_id);
        let asked: BTreeSet<AgentId> = asked.filter(|agent| !agents.contains_key(agent)).collect();
        let asked: Vec<Uuid> = asked.into_iter().map(|agent| agent.0).collect();
        let rows = self.query(sql, &params![asked]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Writes ranges of locked agents that begin exactly above their watermarks.
    pub(super) async fn ranges_write(
        &self,
        ranges: Vec<Cow<'_, Range>>,
        agents: BTreeMap<AgentId, State>,
    ) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let (ranges, numbers) = self.lists_bound(ranges, &agents).await?;
        let hours = agents
            .into_iter()
            .map(|(agent, state)| (agent, state.hours));
        let mut hours: BTreeMap<AgentId, Hours> = hours.collect();
        let ranges = self.hours_bound(ranges, &numbers, &mut hours).await?;
        let entries: Vec<RangeSamples<'_>> = ranges
            .iter()
            .map(|range| RangeSamples::new(range.host_id, range.samples.iter()))
            .collect();
        self.samples_store(&entries, &numbers).await?;
        self.gaps_insert(&ranges).await?;
        let columns = books(&ranges, &entries, &numbers, &hours);
        self.execute(BOOKS, &columns.params()).await.map(drop)
    }

    async fn gaps_insert(&self, ranges: &[Cow<'_, Range>]) -> Result<()> {
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
            .column(&gaps, |(agent, _)| *agent)
            .column(&gaps, |(_, gap)| gap.first_seq)
            .column(&gaps, |(_, gap)| gap.last_seq)
            .column(&gaps, |(_, gap)| gap.kind.as_str())
            .column(&gaps, |(_, gap)| &*gap.reason);
        self.execute(sql, &columns.params()).await.map(drop)
    }

    async fn samples_store(&self, entries: &[RangeSamples<'_>], numbers: &[Numbers]) -> Result<()> {
        if entries.iter().all(|entry| entry.samples.is_empty()) {
            return Ok(());
        }
        let columns = Arrays::default()
            .column(numbers, |(_, host_no)| *host_no)
            .column(numbers, |(agent_no, _)| *agent_no);
        let entries: Vec<&RangeSamples<'_>> = entries.iter().collect();
        let columns = with_samples(columns, &entries);
        let sql = columns.call("samples_append", "samples_store");
        self.execute(&sql, &columns.params()).await.map(drop)
    }
}

/// The parameters of `BOOKS`. Several ranges of one agent add up; they are in the order of their numbers.
fn books<'a>(
    ranges: &[Cow<'_, Range>],
    entries: &[RangeSamples<'_>],
    numbers: &[Numbers],
    hours: &BTreeMap<AgentId, Hours>,
) -> Arrays<'a> {
    let mut agents: BTreeMap<AgentId, BooksChange> = BTreeMap::new();
    for ((range, entry), numbers) in ranges.iter().zip(entries).zip(numbers) {
        let sums = agents.entry(range.agent_id).or_default();
        sums.acked_seq = sums.acked_seq.max(range.last_seq);
        sums.stored += range.stored();
        sums.rejected += range.missing(|kind| kind == GapKind::Rejected);
        sums.gaps += range.missing(|kind| kind != GapKind::Rejected);
        sums.dead_letter |= range.missing(|kind| kind == GapKind::DeadLetter) > 0;
        (sums.host_id, sums.numbers) = (range.host_id.0, *numbers);
        sums.shape = entry.last_shape().or(sums.shape);
        sums.newest = hours.get(&range.agent_id).and_then(Hours::newest);
    }
    let agents: Vec<(AgentId, BooksChange)> = agents.into_iter().collect();
    Arrays::default()
        .column(&agents, |(agent, _)| agent.0)
        .column(&agents, |(_, sums)| sums.acked_seq)
        .column(&agents, |(_, sums)| sums.stored)
        .column(&agents, |(_, sums)| sums.rejected)
        .column(&agents, |(_, sums)| sums.gaps)
        .column(&agents, |(_, sums)| sums.host_id)
        .column(&agents, |(_, sums)| sums.numbers.0)
        .column(&agents, |(_, sums)| sums.numbers.1)
        .column(&agents, |(_, sums)| sums.shape)
        .column(&agents, |(_, sums)| sums.dead_letter)
        .column(&agents, |(_, sums)| sums.newest.map(|(hour, _)| hour))
        .column(&agents, |(_, sums)| sums.newest.map(|(_, samples)| samples))
}
