//! What becomes of a batch: new samples merged into their chunks, and the rollups of the hours that this changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use uuid::Uuid;

use super::write::{HostChunk, HostRollup};
use crate::history::{
    Damaged, Result,
    chunk::{Chunk, ChunkKey},
    rollup::{Last, Source, rollup},
    shape::Shape,
};

/// Lists of parts by their names.
pub(super) type Known = HashMap<Uuid, Shape>;

pub(super) type HostChunks = BTreeMap<ChunkKey, Chunk>;

/// New chunks by host.
pub(super) type Fresh = Vec<(i32, HostChunks)>;

/// Chunks of the database, by host.
pub(super) type Stored = HashMap<i32, HostChunks>;

/// The rows that a batch writes.
#[derive(Default)]
pub(super) struct Computed {
    pub(super) chunks: Vec<HostChunk>,
    pub(super) rollups: Vec<HostRollup>,
    /// The lists that some of the rollups refer to.
    pub(super) own_lists: Vec<Shape>,
}

pub(super) fn compute(fresh: Fresh, mut stored: Stored, lists: &Known) -> Result<Computed> {
    let mut computed = Computed::default();
    for (host_no, fresh) in fresh {
        let chunks = stored.remove(&host_no).unwrap_or_default();
        computed.add(host_no, fresh, chunks, lists)?;
    }
    Ok(computed)
}

impl Computed {
    fn add(
        &mut self,
        host_no: i32,
        fresh: HostChunks,
        mut chunks: HostChunks,
        lists: &Known,
    ) -> Result<()> {
        let changed: Vec<ChunkKey> = fresh.keys().copied().collect();
        for (key, new) in fresh {
            let chunk = match chunks.remove(&key) {
                Some(known) => known.merge(&new),
                None => new,
            };
            chunk.validate(list(lists, key.shape)?.parts.len())?;
            chunks.insert(key, chunk);
        }
        let hours = changed.iter().flat_map(|key| [key.hour, key.hour + 1]);
        for hour in hours.collect::<BTreeSet<_>>() {
            self.roll_up(host_no, hour, &chunks, lists)?;
        }
        let chunk = |key: ChunkKey| Some(HostChunk::new(host_no, key, chunks.remove(&key)?));
        self.chunks.extend(changed.into_iter().filter_map(chunk));
        Ok(())
    }

    /// Does nothing for an hour without chunks: the next one of a changed hour is computed if it is stored.
    fn roll_up(
        &mut self,
        host_no: i32,
        hour: i64,
        chunks: &HostChunks,
        lists: &Known,
    ) -> Result<()> {
        let before = sources(hour - 1, chunks, lists)?;
        let last = Last::of(hour - 1, &before);
        let of = sources(hour, chunks, lists)?;
        if let Some(mut figures) = rollup(hour, &of, last.as_ref()) {
            self.own_lists.extend(figures.own_list.take());
            self.rollups.push(HostRollup {
                host_no,
                hour,
                figures,
            });
        }
        Ok(())
    }
}

/// The chunks of an hour.
fn sources<'a>(hour: i64, chunks: &'a HostChunks, lists: &'a Known) -> Result<Vec<Source<'a>>> {
    let first = |hour| ChunkKey {
        hour,
        agent_no: i32::MIN,
        shape: Uuid::nil(),
    };
    let of_hour = chunks.range((
        Bound::Included(first(hour)),
        Bound::Excluded(first(hour + 1)),
    ));
    let source = |(key, chunk): (&ChunkKey, &'a Chunk)| {
        let shape = list(lists, key.shape)?;
        let agent_no = key.agent_no;
        Ok(Source {
            agent_no,
            shape,
            chunk,
        })
    };
    of_hour.map(source).collect()
}

fn list(lists: &Known, name: Uuid) -> Result<&Shape> {
    lists
        .get(&name)
        .ok_or(Damaged("a list of parts is not stored"))
}
