//! How many samples of one hour an agent may store.
//!
//! **Why.** The rate of an agent's reports is limited, but not the times that they say. An agent could fill one hour
//! until it could not be compacted or read.
//!
//! **Counting.** `newest_hour` and `newest_hour_samples` in `agent_state` say how many samples the newest hour of
//! an agent has, and that all later ones have none. The samples of earlier hours, which only late reports bring, are counted
//! in the database once, and then in `agent_hours`. All of it happens under the lock of the agent's row, so no other transaction stores
//! samples of this agent meanwhile; compaction moves samples, but a statement sees each of them once.

use std::{borrow::Cow, collections::BTreeMap};

use super::{Range, SampleRow};
use crate::prelude::*;

/// Two samples a second.
pub(super) const MOST_OF_HOUR: i32 = 7_200;
const TOO_MANY_SAMPLES: &str = "more than 7200 samples of one hour";

/// How many samples of an agent are read that are not compacted: far more than an agent measures in a month. Where one
/// has more, all of its past hours count as full.
const MOST_READ: i64 = 500_000;

/// Counts the samples of agents in hours: rows for compacted samples and rows for others, to be added up. A row without an
/// hour has the number of rows that were read. Samples that an agent has on a former host are not counted.
///
/// It is one statement, because compaction moves samples from one place to the other.
const COUNT: &str = "-- samples_append
    WITH asked AS MATERIALIZED (
        SELECT a.*, (SELECT k.samples FROM agent_hours k WHERE k.agent_no = a.agent_no AND k.hour = a.hour) AS known
          FROM unnest($1::integer[], $2::integer[], $3::integer[]) AS a(agent_no, host_no, hour))
    SELECT a.agent_no, a.hour, coalesce(a.known, (SELECT sum(c.samples) FROM sample_chunks c
             WHERE c.host_no = a.host_no AND c.hour = to_timestamp(a.hour * 3600.0) AND c.agent_no = a.agent_no), 0)::bigint
      FROM asked a
     UNION ALL
    SELECT a.agent_no, (extract(epoch FROM o.starts) / 3600)::integer, o.samples
      FROM (SELECT agent_no, host_no, array_agg(hour) AS hours FROM asked WHERE known IS NULL GROUP BY agent_no, host_no) a
     CROSS JOIN LATERAL (
           SELECT r.starts, count(*) AS samples
             FROM (SELECT date_bin(interval '1 hour', o.sampled_at, timestamptz 'epoch') AS starts FROM samples_visible o
                    WHERE o.host_no = a.host_no AND o.agent_no = a.agent_no LIMIT $4) r
            GROUP BY GROUPING SETS ((r.starts), ())) o
     WHERE o.starts IS NULL OR extract(epoch FROM o.starts) / 3600 = ANY (a.hours)";

const FORGET: &str = "-- samples_append
    DELETE FROM agent_hours WHERE agent_no = ANY ($1)";

const REMEMBER: &str = "-- samples_append
    INSERT INTO agent_hours (agent_no, hour, samples) SELECT * FROM unnest($1::integer[], $2::integer[], $3::integer[])
        ON CONFLICT (agent_no, hour) DO UPDATE SET samples = excluded.samples";

/// How many samples an agent has stored in each hour that a batch is about.
#[derive(Debug, Default)]
pub(super) struct Hours {
    /// The newest hour of any of its samples, in hours since the epoch, and how many it has.
    newest: Option<(i32, i32)>,
    /// Whether that hour is in the future: the clock was set back since. Then later hours than the newest one may have
    /// samples, and nothing is known.
    is_ahead: bool,
    stored: BTreeMap<i32, i32>,
    /// The hours whose counts were read from the database.
    counted: Vec<i32>,
}

/// A question to the database: an agent, its number, the number of a host, and an hour.
type Asked = (AgentId, i32, i32, i32);

impl Hours {
    pub(super) fn new(newest: Option<(i32, i32)>, is_ahead: bool) -> Hours {
        Hours {
            newest,
            is_ahead,
            ..Hours::default()
        }
    }

    fn known(&self, hour: i32) -> Option<i32> {
        match self.newest {
            _ if self.is_ahead => None,
            Some((newest, stored)) if newest == hour => Some(stored),
            Some((newest, _)) if hour < newest => None,
            _ => Some(0),
        }
    }

    /// Adds what the database has counted.
    fn add(&mut self, hour: Option<i32>, samples: i64) {
        let samples = i32::try_from(samples).unwrap_or(i32::MAX);
        match hour {
            Some(hour) => {
                let stored = self.stored.entry(hour).or_default();
                *stored = stored.saturating_add(samples);
            }
            None if i64::from(samples) >= MOST_READ => {
                let full = self.counted.iter().map(|hour| (*hour, MOST_OF_HOUR));
                self.stored.extend(full);
            }
            None => {}
        }
    }

    /// Counts a sample that is to be stored. `false` if the hour is full.
    fn take(&mut self, hour: i32) -> bool {
        let stored = self.stored.entry(hour).or_default();
        let has_room = *stored < MOST_OF_HOUR;
        *stored += i32::from(has_room);
        has_room
    }

    /// The newest hour after the batch.
    pub(super) fn newest(&self) -> Option<(i32, i32)> {
        let of_batch = self.stored.iter().filter(|(_, stored)| **stored > 0);
        let of_batch = of_batch.map(|(hour, stored)| (*hour, *stored)).next_back();
        let before = self.newest.filter(|_| !self.is_ahead);
        before.max(of_batch)
    }

    /// The counted hours that are older than the newest one after the batch, and their counts.
    fn late(&self) -> impl Iterator<Item = (i32, i32)> {
        let newest = self.newest().map(|(hour, _)| hour);
        let past = self
            .counted
            .iter()
            .filter(move |hour| Some(**hour) < newest);
        past.filter_map(|hour| Some((*hour, *self.stored.get(hour)?)))
    }
}

/// The hour in which a sample was taken, in hours since the epoch.
pub(super) fn hour(sample: &SampleRow) -> i32 {
    let hour = sample.sampled_at.as_second().div_euclid(3600);
    i32::try_from(hour).unwrap_or(i32::MAX)
}

impl Tx {
    /// Rejects the samples of hours that are full, and counts the others. The `numbers` are those of the agent and the host of
    /// each range.
    pub(super) async fn hours_bound<'a>(
        &self,
        ranges: Vec<Cow<'a, Range>>,
        numbers: &[(i32, i32)],
        agents: &mut BTreeMap<AgentId, Hours>,
    ) -> Result<Vec<Cow<'a, Range>>> {
        let mut asked: Vec<Asked> = Vec::new();
        for (range, (agent_no, host_no)) in ranges.iter().zip(numbers) {
            let hours = agents.entry(range.agent_id).or_default();
            for hour in range.samples.iter().map(hour) {
                if hours.stored.contains_key(&hour) {
                    continue;
                }
                if hours.known(hour).is_none() {
                    asked.push((range.agent_id, *agent_no, *host_no, hour));
                }
                hours.stored.insert(hour, hours.known(hour).unwrap_or(0));
            }
        }
        self.hours_count(&asked, agents).await?;
        let bounded = |range: Cow<'a, Range>| match agents.get_mut(&range.agent_id) {
            None => range,
            Some(hours) => Range::rejecting(range, |sample| {
                (!hours.take(hour(sample))).then_some(TOO_MANY_SAMPLES)
            }),
        };
        let ranges = ranges.into_iter().map(bounded).collect();
        self.hours_remember(&asked, agents).await?;
        Ok(ranges)
    }

    async fn hours_count(
        &self,
        asked: &[Asked],
        agents: &mut BTreeMap<AgentId, Hours>,
    ) -> Result<()> {
        if asked.is_empty() {
            return Ok(());
        }
        let ahead = |asked: &&Asked| agents.get(&asked.0).is_some_and(|hours| hours.is_ahead);
        let ahead: Vec<i32> = asked.iter().filter(ahead).map(|asked| asked.1).collect();
        if !ahead.is_empty() {
            let params = params![ahead];
            self.execute(FORGET, &params).await?;
        }
        let columns = Arrays::default()
            .column(asked, |asked| asked.1)
            .column(asked, |asked| asked.2)
            .column(asked, |asked| asked.3)
            .value(MOST_READ);
        let rows = self.query(COUNT, &columns.params()).await?;
        let of_numbers: BTreeMap<i32, AgentId> = asked.iter().map(|of| (of.1, of.0)).collect();
        for (agent, _, _, hour) in asked {
            let hours = agents.get_mut(agent);
            hours.into_iter().for_each(|of| of.counted.push(*hour));
        }
        for row in rows {
            let agent = of_numbers.get(&row.try_get(0)?);
            if let Some(hours) = agent.and_then(|agent| agents.get_mut(agent)) {
                hours.add(row.try_get(1)?, row.try_get(2)?);
            }
        }
        Ok(())
    }

    async fn hours_remember(
        &self,
        asked: &[Asked],
        agents: &BTreeMap<AgentId, Hours>,
    ) -> Result<()> {
        let numbers: BTreeMap<AgentId, i32> = asked.iter().map(|of| (of.0, of.1)).collect();
        let mut late = Vec::new();
        for (agent, agent_no) in numbers {
            let hours = agents.get(&agent).into_iter().flat_map(Hours::late);
            late.extend(hours.map(|(hour, samples)| (agent_no, hour, samples)));
        }
        if late.is_empty() {
            return Ok(());
        }
        let columns = Arrays::default()
            .column(&late, |late| late.0)
            .column(&late, |late| late.1)
            .column(&late, |late| late.2);
        self.execute(REMEMBER, &columns.params()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_with_too_many_samples_to_count_has_no_room_in_its_past() {
        let mut hours = Hours::new(Some((9, 5)), false);
        for hour in [7, 8, 9, 10] {
            hours.stored.insert(hour, hours.known(hour).unwrap_or(0));
        }
        hours.counted = vec![7, 8];
        hours.add(None, MOST_READ - 1);
        hours.add(Some(8), 3);
        assert!([7, 8, 9, 10].into_iter().all(|hour| hours.take(hour)));
        hours.add(None, MOST_READ);
        let taken = [7, 8, 9, 10].map(|hour| hours.take(hour));
        assert_eq!(taken, [false, false, true, true]);
        assert_eq!(hours.newest(), Some((10, 2)));
    }

    #[test]
    fn only_what_was_counted_and_is_past_is_remembered() {
        let mut hours = Hours::new(Some((900, 7)), true);
        assert_eq!(hours.known(1), None);
        (hours.stored, hours.counted) = (BTreeMap::from([(1, 4), (2, 0)]), vec![1, 2]);
        assert!(hours.take(2));
        assert_eq!(hours.newest(), Some((2, 1)));
        assert_eq!(hours.late().collect::<Vec<_>>(), [(1, 4)]);
    }

    #[test]
    fn the_documents_and_the_reason_name_the_bound() {
        let (thousands, rest) = (MOST_OF_HOUR / 1000, MOST_OF_HOUR % 1000);
        let named = format!("{thousands},{rest:03} samples");
        for document in [
            include_str!("../../../../../docs/protocol.md"),
            include_str!("../../../../../docs/data-model.md"),
            include_str!("../../../../../docs/operating.md"),
        ] {
            assert!(document.contains(&named), "{named}: {document:.40}");
        }
        assert!(TOO_MANY_SAMPLES.contains(&MOST_OF_HOUR.to_string()));
    }
}
