//! The lists of parts that a step meets, and those of rollups that have one of their own.
//!
//! A row of `sample_shapes` may be one that an append waits for. So a step writes none in its own transaction, which may last for
//! a minute: each is a statement by itself, and its rows are in the order of their names, as in appends.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use super::batch::{Fresh, Known, Stored};
use crate::{
    history::shape::{Part, Shape},
    prelude::*,
};

/// How many parts the lists that are kept in memory have together.
const MOST_KEPT: usize = 500_000;

#[derive(Default)]
pub(super) struct Lists {
    known: Arc<Known>,
    parts: usize,
    /// The lists that were not seen for a week.
    unseen: BTreeSet<Uuid>,
    /// The lists of rollups that this step has stored.
    stored: HashSet<Uuid>,
}

impl Lists {
    pub(super) fn known(&self) -> Arc<Known> {
        self.known.clone()
    }

    /// The lists among these that this step has not stored yet.
    pub(super) fn unknown<'a>(&mut self, lists: &'a [Shape]) -> Vec<&'a Shape> {
        let new = lists.iter().filter(|list| self.stored.insert(list.name));
        new.collect()
    }

    pub(super) fn into_unseen(self) -> Vec<Uuid> {
        self.unseen.into_iter().collect()
    }

    /// Reads the lists of these chunks.
    pub(super) async fn read(&mut self, tx: &Tx, fresh: &Fresh, stored: &Stored) -> Result<()> {
        let sql = "-- compaction_step
            SELECT shape, parts, seen_on < current_date - 7 AS unseen FROM sample_shapes WHERE shape = ANY ($1)";
        if self.parts > MOST_KEPT {
            (self.known, self.parts) = (Arc::default(), 0);
        }
        let fresh = fresh.iter().map(|(_, chunks)| chunks);
        let keys = fresh
            .chain(stored.values())
            .flat_map(|chunks| chunks.keys());
        let shapes: HashSet<Uuid> = keys.map(|key| key.shape).collect();
        let missing = shapes
            .into_iter()
            .filter(|shape| !self.known.contains_key(shape));
        let missing: Vec<Uuid> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        let known = Arc::make_mut(&mut self.known);
        for row in tx.query(sql, &params![missing]).await? {
            let (name, Json(parts)): (Uuid, Json<Vec<Part<'static>>>) =
                (row.try_get("shape")?, row.try_get("parts")?);
            self.parts += parts.len();
            known.insert(name, Shape::stored(name, parts));
            if row.try_get("unseen")? {
                self.unseen.insert(name);
            }
        }
        Ok(())
    }
}

impl Store {
    /// Stores lists of rollups.
    pub(super) async fn lists_store(&self, lists: Vec<&Shape>) -> Result<()> {
        if lists.is_empty() {
            return Ok(());
        }
        let sql = "-- compaction_lists
            INSERT INTO sample_shapes (shape, parts)
            SELECT list.shape, list.parts FROM unnest($1::uuid[], $2::jsonb[]) AS list(shape, parts)
             WHERE NOT EXISTS (SELECT FROM sample_shapes k WHERE k.shape = list.shape AND k.seen_on >= current_date - 7)
             ORDER BY list.shape
            ON CONFLICT (shape) DO UPDATE SET seen_on = excluded.seen_on";
        let names: Vec<Uuid> = lists.iter().map(|list| list.name).collect();
        let parts: Vec<Json<&Vec<Part<'_>>>> = lists.iter().map(|list| Json(&list.parts)).collect();
        let params = params![names, parts];
        self.call("compaction_lists", Watch, sql, &params)
            .await
            .map(drop)
    }

    /// Notes that these lists are in use.
    pub(super) async fn lists_seen(&self, lists: &[Uuid]) -> Result<()> {
        if lists.is_empty() {
            return Ok(());
        }
        let sql = "-- compaction_lists
            UPDATE sample_shapes s SET seen_on = current_date
              FROM (SELECT shape FROM sample_shapes WHERE shape = ANY ($1) AND seen_on < current_date - 7
                     ORDER BY shape FOR UPDATE) unseen
             WHERE s.shape = unseen.shape";
        let params = params![lists];
        self.call("compaction_lists", Watch, sql, &params)
            .await
            .map(drop)
    }
}
