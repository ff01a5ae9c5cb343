//! How a search finds a page of hosts in their order, and how many there are.
//!
//! No single plan is fast for every search. A plan that follows the order stops early when many hosts
//! match, and reads the whole fleet when few do. A plan that collects all matches by an index is
//! the opposite. The planner guesses between the two, and guesses wrong where a condition follows the
//! order: the hosts of one data centre often have its name in front of theirs. So both run, each with a
//! bound:
//!
//! 1. Conditions on agents and vitals are looked at first. A set of at most [`RARE`](super::conditions::RARE) hosts, or of a few
//!    times as many as are wanted, decides alone.
//! 2. A search for parts of the name alone, in the order of the names, is left to the planner: an index has all that it takes, so
//!    that even a walk through the whole fleet costs less than to collect a quarter of it.
//! 3. Otherwise at most [`WALK`] hosts are walked in their order. Usually that fills the page.
//! 4. Otherwise all matches of the indexes are collected and sorted. Conditions that cost a lookup for
//!    each host come last, so they are evaluated only until the page is full: for the first
//!    [`CANDIDATES`] matches first, because sorting a few out of many costs less than sorting all.

use super::{HostCursor, HostSort, HostsPage, Total, conditions::Conditions};
use crate::prelude::*;

/// Hosts that are walked before the indexes are asked: about 10 ms.
const WALK: i64 = 4000;
/// How far matches are counted. An exact larger number is not worth its cost.
const COUNT_UP_TO: i64 = 10_000;
/// How far matches are counted where each host costs a lookup.
const COUNT_LOOKUPS_UP_TO: i64 = 1000;
/// How many candidates are looked up first, for each host of the page. Conditions that cost lookups hold for many agents, so
/// these candidates usually fill the page.
const CANDIDATES: i64 = 20;

/// Found ids in their order.
#[derive(Default)]
pub(super) struct Found {
    pub(super) ids: Vec<Uuid>,
    /// The places of the first and the last of them.
    pub(super) first: Option<HostCursor>,
    pub(super) last: Option<HostCursor>,
    /// Whether the limit left some out: at the end, or going backwards at the beginning.
    pub(super) more: bool,
    /// The number of all matches, if finding these has counted them.
    total: Option<i64>,
}

/// A search with its conditions as SQL.
pub(super) struct Plan {
    sort: HostSort,
    conditions: Conditions,
    limit: i64,
    /// The parameters of the place behind which the page begins.
    after: Option<(String, String)>,
    backwards: bool,
}

impl Plan {
    /// A plan to find `limit` hosts. `None` if no host can match.
    pub(super) async fn new(tx: &Tx, page: &HostsPage, limit: i64) -> Result<Option<Self>> {
        let sort = match page.search.online {
            // Hosts that are online have no order by the length of their absence.
            Some(true) if page.sort == HostSort::Offline => HostSort::Name,
            _ => page.sort,
        };
        let Some(mut conditions) = Conditions::of(tx, &page.search, sort, limit).await? else {
            return Ok(None);
        };
        let after = page.after.as_ref().map(|(last, id)| {
            let last = conditions.param(last.clone());
            (last, conditions.param(*id))
        });
        Ok(Some(Self {
            sort,
            conditions,
            limit,
            after,
            backwards: page.backwards && page.after.is_some(),
        }))
    }

    pub(super) async fn find(&self, tx: &Tx) -> Result<Found> {
        let mut found = match self.sort == HostSort::Name && self.conditions.only_names() {
            true => self.query(tx, &self.names_sql()).await?,
            false => self.search(tx).await?,
        };
        if self.after.is_none() && found.ids.is_empty() {
            found.total = Some(0);
        }
        Ok(found)
    }

    async fn search(&self, tx: &Tx) -> Result<Found> {
        if !self.conditions.is_rare() {
            let walked = self.query(tx, &self.walk_sql()).await?;
            // A page is full if there is a next one. Otherwise it may lack hosts that the walk did not reach.
            if walked.more {
                return Ok(walked);
            }
        }
        if self.conditions.has_lookups() {
            let some = format!("LIMIT {}", CANDIDATES * self.limit);
            let found = self.query(tx, &self.collect_sql(&some)).await?;
            if found.more {
                return Ok(found);
            }
        }
        // An OFFSET keeps the sorted part apart, so that lookups come after it.
        self.query(tx, &self.collect_sql("OFFSET 0")).await
    }

    async fn query(&self, tx: &Tx, sql: &str) -> Result<Found> {
        let rows = tx.query(sql, &self.conditions.params()).await?;
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let id = |row: &Row| Ok(row.try_get("id")?);
        let kept = &rows[..rows.len().min(limit)];
        let place = |row: &Row| -> Result<HostCursor> {
            Ok((row.try_get("sort_key")?, row.try_get("sort_id")?))
        };
        let mut ids = kept.iter().map(id).collect::<Result<Vec<Uuid>>>()?;
        let mut ends = (kept.first(), kept.last());
        if self.backwards {
            ids.reverse();
            ends = (ends.1, ends.0);
        }
        Ok(Found {
            ids,
            first: ends.0.map(place).transpose()?,
            last: ends.1.map(place).transpose()?,
            more: rows.len() > limit,
            total: match rows.first() {
                Some(first) => first.try_get("total")?,
                None => None,
            },
        })
    }

    pub(super) async fn total(&self, tx: &Tx, found: &Found) -> Result<Total> {
        let number = match found.total {
            Some(number) => number,
            None => {
                let sql = format!(
                    "-- console_hosts\n{} SELECT {}",
                    self.found_sql(self.sort.counted()),
                    self.count_sql()
                );
                let row = tx.query_one(&sql, &self.conditions.params()).await?;
                row.try_get(0)?
            }
        };
        Ok(match number < self.count_up_to() {
            true => Total::Exactly(number),
            false => Total::AtLeast(number),
        })
    }

    /// Hosts by name. The first page counts them too.
    fn names_sql(&self) -> String {
        let (source, base) = self.sort.source();
        let (value, _, tie) = self.sort.order();
        let (direction, ties) = self.sort.directions(self.backwards);
        let (most, count) = match self.after {
            None => (COUNT_UP_TO, "(SELECT count(*) FROM found)"),
            Some(_) => (0, "NULL::bigint"),
        };
        format!(
            "-- console_hosts
            WITH found AS MATERIALIZED (SELECT h.id, {value} AS sort_value, {tie} AS sort_id
                    FROM {source} WHERE {base} AND {in_service} AND {names} AND {after}
                   ORDER BY {value} {direction}, {tie} {ties} LIMIT {most})
            SELECT h.id, {key} AS sort_key, h.sort_id, {count} AS total
              FROM found h ORDER BY h.sort_value {direction}, h.sort_id {ties} LIMIT {limit} + 1",
            key = self.sort.key(),
            names = self.conditions.indexed(),
            in_service = self.conditions.in_service,
            after = self.after_sql(value, tie),
            most = most.max(self.limit + 1),
            limit = self.limit,
        )
    }

    /// Hosts in their order, until the page is full or the walk has taken its bound. One row more than
    /// the page tells whether there is a next one.
    fn walk_sql(&self) -> String {
        let (source, base) = self.sort.source();
        let (value, _, tie) = self.sort.order();
        let (direction, ties) = self.sort.directions(self.backwards);
        format!(
            "-- console_hosts
            SELECT h.id, {key} AS sort_key, h.sort_id, NULL::bigint AS total
              FROM (SELECT h.id, {value} AS sort_value, {tie} AS sort_id, ({indexed} AND {lookups}) AS fits
                      FROM {source} WHERE {base} AND {in_service} AND {after}
                     ORDER BY {value} {direction}, {tie} {ties} LIMIT {walk}) h
             WHERE h.fits ORDER BY h.sort_value {direction}, h.sort_id {ties} LIMIT {limit} + 1",
            key = self.sort.key(),
            indexed = self.conditions.indexed(),
            lookups = self.conditions.lookups(),
            in_service = self.conditions.in_service,
            after = self.after_sql(value, tie),
            walk = WALK.max(self.limit * 4),
            limit = self.limit,
        )
    }

    /// All matches of the indexes, sorted, and as many of them as `bound` lets through; lookups last.
    fn collect_sql(&self, bound: &str) -> String {
        let (direction, ties) = self.sort.directions(self.backwards);
        format!(
            "-- console_hosts
            {found}
            SELECT h.id, {key} AS sort_key, h.sort_id, {count} AS total
              FROM (SELECT * FROM found h WHERE {after} ORDER BY h.sort_value {direction}, h.sort_id {ties} {bound}) h
             WHERE {lookups} LIMIT {limit} + 1",
            found = self.found_sql(self.sort),
            key = self.sort.key(),
            count = self.count_sql(),
            after = self.after_sql("h.sort_value", "h.sort_id"),
            lookups = self.conditions.lookups(),
            limit = self.limit,
        )
    }

    /// A materialized part is planned for all its rows, and read only as far as needed.
    fn found_sql(&self, sort: HostSort) -> String {
        let (source, base) = sort.source();
        let (value, _, tie) = sort.order();
        format!(
            "WITH found AS MATERIALIZED (SELECT h.id, {value} AS sort_value, {tie} AS sort_id
                    FROM {source} WHERE {base} AND {in_service} AND {rare} AND {indexed})",
            in_service = self.conditions.in_service,
            rare = self.conditions.rare(),
            indexed = self.conditions.indexed(),
        )
    }

    fn count_sql(&self) -> String {
        let (lookups, most) = (self.conditions.lookups(), self.count_up_to());
        format!("(SELECT count(*) FROM (SELECT FROM found h WHERE {lookups} LIMIT {most}) counted)")
    }

    fn count_up_to(&self) -> i64 {
        match self.conditions.has_lookups() {
            true => COUNT_LOOKUPS_UP_TO,
            false => COUNT_UP_TO,
        }
    }

    fn after_sql(&self, value: &str, tie: &str) -> String {
        match &self.after {
            Some((last, id)) => self.sort.after((value, tie), (last, id), self.backwards),
            None => "true".into(),
        }
    }
}
