//! How many lists of parts an agent may begin to use on a day.
//!
//! **Why.** Names of disks and devices are free. An agent that changed one in each sample would make a list and a chunk for
//! each of them, which all readers of its host must look at.
//!
//! The list of an agent's newest samples is known. Only the others are looked up, under the lock of the agent's row.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::Value;

use super::{
    Range,
    advance::{Numbers, State},
};
use crate::prelude::*;

const MOST_LISTS: i32 = 256;
const TOO_MANY_LISTS: &str = "more than 256 different lists of parts in a day";

impl Tx {
    /// Assigns the numbers of each range, stores the lists of parts that agents begin to use, and rejects the samples of
    /// those that are too many.
    pub(super) async fn lists_bound<'a>(
        &self,
        ranges: Vec<Cow<'a, Range>>,
        agents: &BTreeMap<AgentId, State>,
    ) -> Result<(Vec<Cow<'a, Range>>, Vec<Numbers>)> {
        let lists = Lists::begun(&ranges, agents);
        let columns = Arrays::default()
            .value(MOST_LISTS)
            .column(&ranges, |range| range.agent_id.0)
            .column(&ranges, |range| range.host_id.0)
            .column(&lists.lists, |(shape, _)| *shape)
            .column(&lists.lists, |(_, parts)| parts.clone())
            .column(&lists.uses, |of| of.range)
            .column(&lists.uses, |of| of.list);
        let sql = columns.call("samples_append", "samples_prepare");
        let row = self.query_one(&sql, &columns.params()).await?;
        let (agent_nos, host_nos): (Vec<i32>, Vec<i32>) = (row.try_get(0)?, row.try_get(1)?);
        let refused = lists.refused(row.try_get(2)?);
        let bounded = |range: Cow<'a, Range>| {
            let agent = range.agent_id;
            if !refused.iter().any(|(of, _)| *of == agent) {
                return range;
            }
            let is_refused = |shape| refused.contains(&(agent, shape));
            Range::rejecting(range, |of| is_refused(of.shape()).then_some(TOO_MANY_LISTS))
        };
        let ranges = ranges.into_iter().map(bounded).collect();
        Ok((ranges, agent_nos.into_iter().zip(host_nos).collect()))
    }
}

/// The lists of parts in a batch that are not the present ones of their agents.
#[derive(Default)]
struct Lists {
    lists: Vec<(Uuid, Value)>,
    /// In the order of the samples.
    uses: Vec<Use>,
}

/// An agent begins to use a list: the places, from 1, of one of its ranges and of the list.
struct Use {
    agent: AgentId,
    range: i32,
    list: i32,
}

impl Lists {
    fn begun(ranges: &[Cow<'_, Range>], agents: &BTreeMap<AgentId, State>) -> Lists {
        let mut begun = Lists::default();
        let mut places: BTreeMap<Uuid, i32> = BTreeMap::new();
        let mut seen: BTreeSet<(AgentId, Uuid)> = BTreeSet::new();
        for (place, range) in (1..).zip(ranges) {
            let present = agents.get(&range.agent_id).and_then(|state| state.shape);
            for sample in &range.samples {
                let shape = sample.shape();
                if Some(shape) == present || !seen.insert((range.agent_id, shape)) {
                    continue;
                }
                let list = *places.entry(shape).or_insert_with(|| {
                    begun.lists.push((shape, sample.shape_parts()));
                    i32::try_from(begun.lists.len()).unwrap_or(i32::MAX)
                });
                begun.uses.push(Use {
                    agent: range.agent_id,
                    range: place,
                    list,
                });
            }
        }
        begun
    }

    /// The agents and lists of these uses, whose places count from 1.
    fn refused(&self, places: Vec<i64>) -> BTreeSet<(AgentId, Uuid)> {
        let place = |place: i64| usize::try_from(place).ok()?.checked_sub(1);
        let uses = places
            .into_iter()
            .filter_map(|of| self.uses.get(place(of)?));
        let of_use = |of: &Use| {
            let list = self.lists.get(place(of.list.into())?)?;
            Some((of.agent, list.0))
        };
        uses.filter_map(of_use).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_and_the_reason_name_the_bound() {
        let lists = format!("{MOST_LISTS} different lists of parts");
        for (document, named) in [
            (include_str!("../../../../../docs/protocol.md"), &lists),
            (include_str!("../../../../../docs/operating.md"), &lists),
            (
                include_str!("../../../../../docs/data-model.md"),
                &format!("{MOST_LISTS} shapes in a day"),
            ),
        ] {
            assert!(document.contains(named), "{named}: {document:.40}");
        }
        assert!(TOO_MANY_LISTS.contains(&MOST_LISTS.to_string()));
    }
}
