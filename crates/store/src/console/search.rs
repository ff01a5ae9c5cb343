//! Which hosts a search finds: a page of them in their order, and how many there are.
//!
//! No single plan is fast for every search. A plan that follows the order stops early when many hosts
//! match, and reads the whole fleet when few do. A plan that collects all matches by an index is
//! the opposite. The planner guesses between the two, and guesses wrong where a condition follows the
//! order: the hosts of one data centre often have its name in front of theirs. So both run, each with a
//! bound:
//!
//! 1. Conditions on agents and vitals are looked at first. A set of at most [`conditions::RARE`] hosts decides alone.
//! 2. Otherwise at most [`WALK`] hosts are walked in their order. Usually that fills the page.
//! 3. Otherwise all matches of the indexes are collected and sorted. Conditions that cost a lookup for
//!    each host come last, so they are evaluated only until the page is full: for the first
//!    [`CANDIDATES`] matches first, because sorting a few out of many costs less than sorting all.
//!
//! The page's ids are found first, and only they are joined with what is shown.

mod conditions;

use std::collections::BTreeMap;

use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use self::conditions::Conditions;
use super::hosts::{HostListRow, rows_sql};
use crate::{
    error::StoreError,
    pool::{Bulkhead, Store},
    tx::Tx,
};

/// Hosts that are walked before the indexes are asked: about 10 ms.
const WALK: i64 = 4000;
/// Counting further costs more than knowing is worth.
const COUNT_UP_TO: i64 = 10_000;
/// The same where each host costs a lookup.
const COUNT_LOOKUPS_UP_TO: i64 = 1000;
/// Conditions that cost lookups hold for many agents: this many times the page usually fills it.
const CANDIDATES: i64 = 20;

/// Tables and indexes of a fleet are in memory, and compiling a plan takes longer than these plans run.
const SETTINGS: &str =
    "SET LOCAL random_page_cost = 1.1; SET LOCAL work_mem = '16MB'; SET LOCAL jit = off";

/// Which hosts to list. All conditions must hold. The default is every host in service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostSearch {
    /// Parts of the hostname, or a whole address.
    pub texts: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// A part of the operating system's name.
    pub os: Option<String>,
    /// The beginning of the agent's version.
    pub version: Option<String>,
    /// The presence of the active agent.
    pub online: Option<bool>,
    /// Retired hosts instead of those in service.
    pub retired: bool,
    /// At least this use of the fullest disk, in percent.
    pub disk_at_least: Option<i16>,
    /// Hosts of agents that registered with this token.
    pub token: Option<Uuid>,
    /// Hosts that are online with a clock that is off by more than 30 s.
    pub skewed: bool,
    /// Hosts with gaps since yesterday.
    pub gaps: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HostSort {
    #[default]
    Name,
    /// The fullest disk first.
    Disk,
    /// The longest offline first; only hosts whose agent is offline.
    Offline,
}

/// The sort key and the id behind it of the last host of a page.
pub type HostCursor = (String, Uuid);

/// Which page of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostsPage {
    pub search: HostSearch,
    pub sort: HostSort,
    pub after: Option<HostCursor>,
}

/// A page of hosts.
#[derive(Debug, Clone, Default)]
pub struct HostsFound {
    pub rows: Vec<HostListRow>,
    /// Where the next page begins, if there is one.
    pub next: Option<HostCursor>,
    pub total: Total,
}

/// How many hosts a search finds on all its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    Exactly(i64),
    AtLeast(i64),
}

impl Default for Total {
    fn default() -> Self {
        Self::Exactly(0)
    }
}

/// Found ids in their order, with the place of the last of them.
#[derive(Default)]
struct Found {
    ids: Vec<Uuid>,
    next: Option<HostCursor>,
    /// Some if finding them has counted all.
    total: Option<i64>,
}

impl HostSort {
    /// The tables to read, with the condition that the order itself makes.
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::Name => ("hosts h", "true"),
            Self::Disk => ("host_vitals v JOIN hosts h ON h.id = v.host_id", "true"),
            Self::Offline => (
                "agent_state s JOIN agents a ON a.id = s.agent_id AND a.status = 'active' JOIN hosts h ON h.id = a.host_id",
                "s.presence = 'offline'",
            ),
        }
    }

    /// The value to sort by, its direction, and the id that decides between equal values. An index has
    /// each pair: a whole fleet that went offline at once has one value.
    fn order(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Name => ("h.hostname", "", "h.id"),
            Self::Disk => ("v.fullest_disk_percent", "DESC NULLS LAST", "v.host_id"),
            Self::Offline => ("s.presence_since", "", "s.agent_id"),
        }
    }

    /// The sort key as text.
    fn key(self) -> &'static str {
        match self {
            Self::Name => "h.sort_value",
            Self::Disk => "coalesce(h.sort_value, -1)::text",
            Self::Offline => "coalesce(extract(epoch FROM h.sort_value), 0)::text",
        }
    }

    /// The condition on the rows behind the key `last` and the id `id`.
    fn after(self, (value, tie): (&str, &str), (last, id): (&str, &str)) -> String {
        match self {
            Self::Name => format!("({value}, {tie}) > ({last}, {id})"),
            Self::Disk => format!(
                "(coalesce({value}, -1) < {last}::int OR coalesce({value}, -1) = {last}::int AND {tie} > {id})"
            ),
            Self::Offline => format!("({value}, {tie}) > (to_timestamp({last}::float8), {id})"),
        }
    }
}

impl Store {
    pub async fn console_hosts(
        &self,
        page: &HostsPage,
        limit: u32,
    ) -> Result<HostsFound, StoreError> {
        self.run("console_hosts", Bulkhead::Ingest, async |tx| {
            tx.batch(SETTINGS).await?;
            let Some(plan) = Plan::new(&tx, page).await? else {
                return Ok(HostsFound::default());
            };
            let found = plan.find(&tx, i64::from(limit)).await?;
            let rows = rows(&tx, &found.ids).await?;
            Ok(HostsFound {
                total: plan.total(&tx, &found).await?,
                next: found.next,
                rows,
            })
        })
        .await
    }

    /// The ids that a search finds, in the order of the names, at most `most`.
    pub async fn console_host_ids(
        &self,
        search: &HostSearch,
        most: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let page = HostsPage {
            search: search.clone(),
            ..HostsPage::default()
        };
        self.run("console_host_ids", Bulkhead::Ingest, async |tx| {
            tx.batch(SETTINGS).await?;
            match Plan::new(&tx, &page).await? {
                Some(plan) => Ok(plan.find(&tx, most).await?.ids),
                None => Ok(Vec::new()),
            }
        })
        .await
    }
}

/// The rows of these hosts, in the same order.
async fn rows(tx: &Tx, ids: &[Uuid]) -> Result<Vec<HostListRow>, StoreError> {
    let found = tx.query(&rows_sql(), &[(&ids, Type::UUID_ARRAY)]).await?;
    let rows = found.iter().map(HostListRow::from_row);
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    rows.sort_by_key(|row| ids.iter().position(|id| *id == row.id.0));
    Ok(rows)
}

/// A search with its conditions as SQL.
struct Plan {
    sort: HostSort,
    conditions: Conditions,
    /// The parameters of the place behind which the page begins.
    after: Option<(String, String)>,
}

impl Plan {
    /// `None` if no host can match.
    async fn new(tx: &Tx, page: &HostsPage) -> Result<Option<Self>, StoreError> {
        let sort = match page.search.online {
            // Hosts that are online have no order by the length of their absence.
            Some(true) if page.sort == HostSort::Offline => HostSort::Name,
            _ => page.sort,
        };
        let Some(mut conditions) = Conditions::of(tx, &page.search, sort).await? else {
            return Ok(None);
        };
        let after = page.after.as_ref().map(|(last, id)| {
            let last = conditions.param(last.clone(), Type::TEXT);
            (last, conditions.param(*id, Type::UUID))
        });
        Ok(Some(Self {
            sort,
            conditions,
            after,
        }))
    }

    async fn find(&self, tx: &Tx, limit: i64) -> Result<Found, StoreError> {
        if !self.conditions.is_rare() {
            let walked = self.query(tx, &self.walk_sql(limit), limit).await?;
            // A page with a next one is full; any other may lack hosts that the walk did not reach.
            if walked.next.is_some() {
                return Ok(walked);
            }
        }
        if self.conditions.has_lookups() {
            let some = format!("LIMIT {}", CANDIDATES * limit);
            let found = self
                .query(tx, &self.collect_sql(limit, &some), limit)
                .await?;
            if found.next.is_some() {
                return Ok(found);
            }
        }
        // An OFFSET keeps the sorted part apart, so that lookups come after it.
        let all = self.collect_sql(limit, "OFFSET 0");
        let mut found = self.query(tx, &all, limit).await?;
        if self.after.is_none() && found.ids.is_empty() {
            found.total = Some(0);
        }
        Ok(found)
    }

    async fn query(&self, tx: &Tx, sql: &str, limit: i64) -> Result<Found, StoreError> {
        let rows = tx.query(sql, &self.conditions.params()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let id = |row: &Row| Ok(row.try_get("id")?);
        let kept = &rows[..rows.len().min(limit)];
        let last = kept.last().filter(|_| rows.len() > limit);
        let place = |row: &Row| -> Result<HostCursor, StoreError> {
            Ok((row.try_get("sort_key")?, row.try_get("sort_id")?))
        };
        Ok(Found {
            ids: kept.iter().map(id).collect::<Result<_, StoreError>>()?,
            next: last.map(place).transpose()?,
            total: match rows.first() {
                Some(first) => first.try_get("total")?,
                None => None,
            },
        })
    }

    async fn total(&self, tx: &Tx, found: &Found) -> Result<Total, StoreError> {
        let number = match found.total {
            Some(number) => number,
            None => {
                let sql = format!(
                    "-- console_hosts\n{} SELECT {}",
                    self.found_sql(),
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

    /// Hosts in their order, until the page is full or the walk has taken its bound. One row more than
    /// the page tells whether there is a next one.
    fn walk_sql(&self, limit: i64) -> String {
        let (source, base) = self.sort.source();
        let (value, direction, tie) = self.sort.order();
        format!(
            "-- console_hosts
            SELECT h.id, {key} AS sort_key, h.sort_id, NULL::bigint AS total
              FROM (SELECT h.id, {value} AS sort_value, {tie} AS sort_id, ({indexed} AND {lookups}) AS fits
                      FROM {source} WHERE {base} AND {in_service} AND {after}
                     ORDER BY {value} {direction}, {tie} LIMIT {walk}) h
             WHERE h.fits ORDER BY h.sort_value {direction}, h.sort_id LIMIT {limit} + 1",
            key = self.sort.key(),
            indexed = self.conditions.indexed(),
            lookups = self.conditions.lookups(),
            in_service = self.conditions.in_service,
            after = self.after_sql(value, tie),
            walk = WALK.max(limit * 4),
        )
    }

    /// All matches of the indexes, sorted, and as many of them as `bound` lets through; lookups last.
    fn collect_sql(&self, limit: i64, bound: &str) -> String {
        let (_, direction, _) = self.sort.order();
        format!(
            "-- console_hosts
            {found}
            SELECT h.id, {key} AS sort_key, h.sort_id, {count} AS total
              FROM (SELECT * FROM found h WHERE {after} ORDER BY h.sort_value {direction}, h.sort_id {bound}) h
             WHERE {lookups} LIMIT {limit} + 1",
            found = self.found_sql(),
            key = self.sort.key(),
            count = self.count_sql(),
            after = self.after_sql("h.sort_value", "h.sort_id"),
            lookups = self.conditions.lookups(),
        )
    }

    /// A materialized part is planned for all its rows, and read only as far as needed.
    fn found_sql(&self) -> String {
        let (source, base) = self.sort.source();
        let (value, _, tie) = self.sort.order();
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
            Some((last, id)) => self.sort.after((value, tie), (last, id)),
            None => "true".into(),
        }
    }
}
