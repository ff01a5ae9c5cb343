//! Which hosts a search finds: what may be asked, and the answer. `plan` says how they are found.
//!
//! The page's ids are found first, and only they are joined with what is shown.

mod conditions;
mod order;
mod plan;
mod text;
mod values;
mod words;

use std::{collections::HashMap, time::Duration};

pub use self::order::HostSort;
use self::plan::Plan;
pub(super) use self::text::like;
pub use self::words::WrittenSearch;
use super::{NO_WORKERS, hosts::rows_sql};
use crate::{
    people::hosts::HostRecord,
    prelude::*,
    values::{key_prefix::KeyPrefix, labels::Labels},
};

/// Which hosts to list. All conditions must hold. The default is every host in service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostSearch {
    /// Parts of the hostname, or a whole address.
    pub texts: Vec<String>,
    /// The whole hostname.
    pub hostname: Option<String>,
    pub labels: Labels,
    /// A part of the operating system's name.
    pub os: Option<String>,
    /// The beginning of the agent's version.
    pub version: Option<String>,
    /// The presence of the active agent.
    pub online: Option<bool>,
    /// Its agent has been offline for longer than this.
    pub offline_for: Option<Duration>,
    pub retired: Retired,
    /// At least this use of the fullest disk, in percent.
    pub disk_at_least: Option<i16>,
    /// Hosts of agents that registered with this token.
    pub token: Option<Uuid>,
    /// Hosts of agents whose key's fingerprint begins so.
    pub key: Option<KeyPrefix>,
    /// Hosts that are online with a clock that is off by more than 30 s.
    pub skewed: bool,
    /// Hosts with gaps since yesterday.
    pub gaps: bool,
}

/// Whether a search finds retired hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Retired {
    #[default]
    No,
    /// Besides those in service.
    Too,
    Only,
}

/// The sort key and the id behind it of the last host of a page.
pub type HostCursor = (String, Uuid);

/// Which page of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostsPage {
    pub search: HostSearch,
    pub sort: HostSort,
    pub after: Option<HostCursor>,
    /// The page before the place `after`, not behind it.
    pub backwards: bool,
}

/// A page of hosts.
#[derive(Debug, Clone, Default)]
pub struct HostsFound {
    pub rows: Vec<HostRecord>,
    /// Where the next page begins, if there is one.
    pub next: Option<HostCursor>,
    /// Where the page before this one ends, if there is one.
    pub previous: Option<HostCursor>,
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

impl Store {
    pub async fn console_hosts(&self, page: &HostsPage, limit: u32) -> Result<HostsFound> {
        self.run("console_hosts", Ingest, async |tx| {
            settings(&tx).await?;
            let Some(plan) = Plan::new(&tx, page, i64::from(limit)).await? else {
                return Ok(HostsFound::default());
            };
            let found = plan.find(&tx).await?;
            let rows = rows(&tx, &found.ids).await?;
            Ok(HostsFound {
                total: plan.total(&tx, &found).await?,
                next: found.last.filter(|_| page.backwards || found.more),
                previous: found.first.filter(|_| match page.backwards {
                    true => found.more,
                    false => page.after.is_some(),
                }),
                rows,
            })
        })
        .await
    }

    /// The ids that a search finds, in the order of the names, at most `most`.
    pub async fn console_host_ids(&self, search: &HostSearch, most: i64) -> Result<Vec<Uuid>> {
        let page = HostsPage {
            search: search.clone(),
            ..HostsPage::default()
        };
        self.run("console_host_ids", Ingest, async |tx| {
            settings(&tx).await?;
            match Plan::new(&tx, &page, most).await? {
                Some(plan) => Ok(plan.find(&tx).await?.ids),
                None => Ok(Vec::new()),
            }
        })
        .await
    }
}

async fn settings(tx: &Tx) -> Result<()> {
    tx.batch(NO_WORKERS).await?;
    tx.batch("SET LOCAL random_page_cost = 1.1; SET LOCAL work_mem = '16MB'")
        .await
}

/// The rows of these hosts, in the same order.
async fn rows(tx: &Tx, ids: &[Uuid]) -> Result<Vec<HostRecord>> {
    let mut rows: Vec<HostRecord> = tx.query_all(&rows_sql(), &params![ids]).await?;
    let places: HashMap<Uuid, usize> = ids.iter().copied().zip(0..).collect();
    rows.sort_by_key(|row| places.get(&row.id.0).copied());
    Ok(rows)
}
